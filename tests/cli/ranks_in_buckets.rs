//! Ranks that exchange gradients in buckets over TCP: buckets of any size, and a connection that is cut in the middle of one.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};

use crate::common::{edit::edit, gpt_job, mlp_job};
use crate::ranks::{Runs, ended, rank_0, tiebreak};

#[test]
fn ranks_over_tcp_write_the_run_of_one_process_in_any_buckets() {
    let runs = Runs::of(|folder| {
        let job = gpt_job(folder, "operator", "");
        edit(&job, &[("micro_batches = 3", "micro_batches = 7")]);
        job
    });
    for (ranks, bytes) in [("2", "0"), ("3", "1"), ("3", "9000")] {
        let out = runs.begun(&format!("{ranks}-{bytes}"));
        let mut trainer = runs.trainer(&out, &["--ranks", ranks]);
        let (code, printed) = ended(trainer.env("TIEBREAK_RANKS_BUCKET", bytes).spawn().unwrap());
        assert_eq!(code, 0, "{printed}");
        runs.same(&out);
    }
    let out = runs.begun("malformed");
    let mut trainer = runs.trainer(&out, &["--ranks", "2"]);
    let (code, printed) = ended(trainer.env("TIEBREAK_RANKS_BUCKET", "1 MiB").spawn().unwrap());
    assert!(code != 0 && printed.contains("TIEBREAK_RANKS_BUCKET is \"1 MiB\""), "{code} {printed}");
}

/// Passes bytes on until so many have come, then closes both connections.
fn pass(mut from: TcpStream, mut to: TcpStream, most: usize) {
    let (mut passed, mut block) = (0, [0; 4096]);
    while passed < most {
        let room = block.len().min(most - passed);
        match from.read(&mut block[..room]) {
            Ok(count @ 1..) if to.write_all(&block[..count]).is_ok() => passed += count,
            _ => break,
        }
    }
    for stream in [from, to] {
        let _ = stream.shutdown(Shutdown::Both);
    }
}

/// The connection of rank 1 is cut inside a frame of a bucket: of a shard, of a sum beside a shard, and of a later step.
#[test]
fn a_connection_cut_in_a_bucket_leaves_a_run_that_resumes() {
    let runs = Runs::of(|folder| mlp_job(folder, "microbatch", 6, 4));
    // Preamble, hello, and what rank 1 holds at the beginning take 241 bytes, and the frame of a bucket at least 41 more than the bucket.
    for cut in [241 + 20, 241 + 3000, 241 + 9001, 241 + 40_000] {
        let (child, out, at) = rank_0(&runs, &format!("cut-{cut}"), "2", "60");
        let relay = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = relay.local_addr().unwrap().to_string();
        let relaying = std::thread::spawn(move || {
            let (worker, first) = (relay.accept().unwrap().0, TcpStream::connect(at[0]).unwrap());
            let [back, forth] = [&first, &worker].map(|stream| stream.try_clone().unwrap());
            let forwards = std::thread::spawn(move || pass(worker, first, cut));
            pass(back, forth, usize::MAX);
            forwards.join().unwrap();
        });
        let options = ["train", "--ranks", "2", "--rank", "1", "--coordinator", &address];
        let worker = tiebreak(&options).env("TIEBREAK_RANKS_TOKEN", "right").spawn().unwrap();
        let (code, printed) = ended(child);
        assert!(code == 3 && printed.contains("rank 1 is gone ("), "{cut}: {code} {printed}");
        assert!(printed.contains("can be resumed from its last checkpoint"), "{cut}: {printed}");
        assert_ne!(ended(worker).0, 0);
        relaying.join().unwrap();
        let (code, printed) = runs.train(&out, &["--ranks", "3"]);
        assert_eq!(code, 0, "{printed}");
        runs.same(&out);
    }
}
