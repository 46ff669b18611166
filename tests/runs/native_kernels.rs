//! Training by a kernel that the engine does not have: audits judge it as any other, and what goes wrong in it is an error behind which
//! the run goes on.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::common::{audited, begin_run, files, gpt_job, key, trained_on};
use tiebreak_audit::Outcome;
use tiebreak_engine::cpu::Cpu;
use tiebreak_engine::cpu::kernel::{Kernel, Numbers, Sums};
use tiebreak_run::run::Folder;
use tiebreak_run::run::dir::Run;
use tiebreak_run::run::disk::Disk;
use tiebreak_train::{Silent, train};

/// What goes wrong in a call.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    Refuses,
    Panics,
    /// The last element stays as it was.
    LeavesOut,
    NotANumber,
    /// A thousandth is added to the least element, which is more than a step of any grid there.
    Lies,
}

/// Sums from the last term to the first, so that they differ from those of each kernel of the engine.
struct Backwards {
    calls: AtomicUsize,
    /// A fault, and the calls before it.
    fault: Option<(Fault, usize)>,
}

impl Backwards {
    fn new(fault: Option<(Fault, usize)>) -> Arc<Backwards> {
        Arc::new(Backwards { calls: AtomicUsize::new(0), fault })
    }
}

/// The numbers of a row, last to first.
fn row<'a>(side: &'a Numbers, batch: [usize; 2], row: usize) -> impl Iterator<Item = f32> + 'a {
    let [outer, inner, rows, along] = side.strides;
    let first = side.offset + batch[0] * outer + batch[1] * inner + row * rows;
    (0..side.dims[3]).rev().map(move |k| side.words[first + k * along])
}

/// Calls `put(place, row of a, row of b)` for each element.
fn each<'a>(a: &'a Numbers, b: &'a Numbers, mut put: impl FnMut(usize, Vec<f32>, Vec<f32>)) {
    let ([outer, inner, m, _], n) = (a.dims, b.dims[2]);
    for place in 0..outer * inner * m * n {
        let batch = [place / (inner * m * n), place / (m * n) % inner];
        put(place, row(a, batch, place / n % m).collect(), row(b, batch, place % n).collect());
    }
}

impl Kernel for Backwards {
    fn name(&self) -> String {
        "backwards 1".into()
    }

    fn product(&self, a: &Numbers, b: &Numbers, sums: Sums) -> Result<(), String> {
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        let fault = self.fault.filter(|(_, before)| call == *before).map(|(fault, _)| fault);
        match fault {
            Some(Fault::Refuses) => return Err("it has no paper".into()),
            Some(Fault::Panics) => panic!("out of ink"),
            _ => {}
        }
        let last = a.dims[..3].iter().product::<usize>() * b.dims[2] - 1;
        let change = |place: usize| match fault {
            Some(Fault::NotANumber) if place == last => f64::NAN,
            _ => 0.0,
        };
        let least = |sums: &mut dyn Iterator<Item = f64>| {
            let sizes = sums.map(f64::abs).enumerate();
            sizes.min_by(|x, y| x.1.total_cmp(&y.1)).map_or(0, |(place, _)| place)
        };
        let stays = |place| fault == Some(Fault::LeavesOut) && place == last;
        match sums {
            Sums::Binary32(sums) => {
                each(a, b, |place, x, y| {
                    if !stays(place) {
                        let sum = x.iter().zip(y).fold(0.0f32, |sum, (x, y)| sum + x * y);
                        sums[place] = sum + change(place) as f32;
                    }
                });
                if fault == Some(Fault::Lies) {
                    sums[least(&mut sums.iter().map(|&sum| f64::from(sum)))] += 1e-3;
                }
            }
            Sums::Binary64(sums) => {
                each(a, b, |place, x, y| {
                    if !stays(place) {
                        let sum = x.iter().zip(y).fold(0.0, |sum, (x, y)| sum + f64::from(*x) * f64::from(y));
                        sums[place] = sum + change(place);
                    }
                });
                if fault == Some(Fault::Lies) {
                    sums[least(&mut sums.iter().copied())] += 1e-3;
                }
            }
        }
        Ok(())
    }
}

fn cpu(kernel: Arc<Backwards>) -> Cpu {
    Cpu::new(2).unwrap().with_kernel(kernel)
}

const GRIDS: [&str; 4] = ["", "bits = 32", "bits = 28", "preset = \"paper\""];

#[test]
fn the_runs_of_another_kernel_are_audited_to_a_match() {
    for table in GRIDS {
        let folder = tempfile::tempdir().unwrap();
        let job = gpt_job(folder.path(), "operator", &format!("\n[rounding]\n{table}\n"));
        let kernel = Backwards::new(None);
        let run = trained_on(&mut cpu(kernel.clone()), &job, &folder.path().join("run"), None);
        assert!(kernel.calls.load(Ordering::Relaxed) > 100, "the kernel computes the products");
        assert_eq!(audited(&run, &mut Cpu::new(2).unwrap()).0.outcome, Outcome::Matches, "{table}");
        if table == "bits = 32" {
            // Hardly any value of binary32 is so near to a boundary that two orders round it apart.
            let own = trained_on(&mut Cpu::new(2).unwrap(), &job, &folder.path().join("own"), None);
            let state = |run: &Run| fs::read(run.layout.root.join("model.safetensors")).unwrap();
            assert!(state(&own) == state(&run));
        }
    }
}

#[test]
fn a_kernel_that_lies_is_caught() {
    for table in GRIDS {
        let folder = tempfile::tempdir().unwrap();
        let job = gpt_job(folder.path(), "operator", &format!("\n[rounding]\n{table}\n"));
        let out = folder.path().join("run");
        let run = trained_on(&mut cpu(Backwards::new(Some((Fault::Lies, 40)))), &job, &out, None);
        let outcome = audited(&run, &mut Cpu::new(2).unwrap()).0.outcome;
        assert!(
            matches!(outcome, Outcome::Diverges { .. } | Outcome::MissingDecision { .. }),
            "{table}: {outcome:?}"
        );
    }
}

#[test]
fn a_run_goes_on_behind_a_kernel_that_fails() {
    for (table, fault, why) in [
        ("", Fault::Refuses, "the native kernel backwards 1 failed in"),
        ("bits = 32", Fault::Refuses, ": it has no paper"),
        ("", Fault::Panics, ": it panicked: out of ink"),
        ("", Fault::LeavesOut, "as it was"),
        ("bits = 32", Fault::LeavesOut, "as it was"),
        ("", Fault::NotANumber, "of a native product is not finite"),
        ("bits = 28", Fault::NotANumber, "of a native product is not finite"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let job = gpt_job(folder.path(), "microbatch", &format!("\n[rounding]\n{table}\n"));
        let whole = trained_on(&mut cpu(Backwards::new(None)), &job, &folder.path().join("whole"), None);
        let out = folder.path().join("cut");
        let run = begin_run(&Disk::default(), &job, &out).unwrap();
        let go_on = |run: &Run, fault| train(run, &mut cpu(Backwards::new(fault)), Some(&key()), &mut Silent);
        let error = go_on(&run, Some((fault, 150))).err().unwrap().to_string();
        assert!(error.contains(why), "{fault:?}: {error}");
        go_on(&opened(&out), None).unwrap();
        assert_eq!(files(&out.join("logs")), files(&whole.layout.logs()));
        assert_eq!(fs::read(run.layout.transcript()).unwrap(), fs::read(whole.layout.transcript()).unwrap());
    }
}

fn opened(out: &Path) -> Run {
    Run::of(Folder::on(&Disk::default(), out)).unwrap()
}
