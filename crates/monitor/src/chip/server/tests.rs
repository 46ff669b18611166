//! Agent and trainer over real sockets, each against an honest and against hostile peers.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::keys::PrivateKey;

use super::{Server, Stopper, Told};
use crate::chip::agent::{Agent, Chip};
use crate::chip::attachment::{Attachment, Taken};
use crate::chip::chain::Chain;
use crate::chip::clock::Clock;
use crate::chip::keeper::LogFile;
use crate::chip::message::ATTACH_MAX;
use crate::chip::times::Times;
use crate::snapshot::log::ChipLog;
use crate::snapshot::record::{Event, Serial};
use crate::snapshot::shard_map::ShardMap;

const LIMIT: Duration = Duration::from_secs(20);

/// Gaps in milliseconds, and none after the last.
struct Gaps(VecDeque<u64>);

impl Times for Gaps {
    fn gap(&mut self) -> u64 {
        self.0.pop_front().map_or(u64::MAX, |gap| 1000 * gap)
    }
}

/// A clock that the test sets, in milliseconds, so that no step depends on how fast this machine is. The agent looks at it again when
/// as much real time has passed as it would have to wait.
struct Set(Arc<AtomicU64>);

impl Clock for Set {
    fn wall(&self) -> u64 {
        1_700_000_000_000 + self.elapsed() / 1000
    }

    fn elapsed(&self) -> u64 {
        1000 * self.0.load(Ordering::SeqCst)
    }
}

/// An agent at work in a folder.
struct Running {
    folder: tempfile::TempDir,
    clock: Arc<AtomicU64>,
    stopper: Stopper,
    thread: JoinHandle<Vec<String>>,
}

fn key() -> PrivateKey {
    PrivateKey::generate("chip.example", [1; 32]).unwrap()
}

fn serial() -> Serial {
    Serial::new("chip-1").unwrap()
}

impl Running {
    /// An agent with snapshots due after these gaps, by a clock at 0.
    fn start(gaps: &[u64], patience: Duration) -> Running {
        let folder = tempfile::tempdir().unwrap();
        let server = Server::listen(&folder.path().join("socket")).unwrap();
        let keeper = LogFile::open(&folder.path().join("log")).unwrap();
        let chip = Chip { serial: serial(), key: key(), patience };
        let gaps = Gaps(gaps.iter().copied().collect());
        let clock = Arc::new(AtomicU64::new(0));
        let agent = Agent::begin(chip, Set(clock.clone()), keeper, |_| gaps).unwrap();
        let stopper = server.stopper();
        let thread = thread::spawn(move || {
            let mut said = Vec::new();
            let mut told = |told: Told| match told {
                Told::Record(_) => {}
                Told::Ended(why) => said.push(why.to_string()),
            };
            server.run(agent, &mut told).unwrap();
            said
        });
        Running { folder, clock, stopper, thread }
    }

    fn set(&self, milliseconds: u64) {
        self.clock.store(milliseconds, Ordering::SeqCst);
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("socket")
    }

    fn attach(&self) -> Result<Attachment, super::ChannelError> {
        Attachment::attach(&self.socket(), Digest([3; 32]), &ShardMap::Whole, Digest([4; 32]), LIMIT)
    }

    /// Stops the agent: the log's events, and why connections ended.
    fn stop(self) -> (Vec<Event>, Vec<String>) {
        self.stopper.stop();
        let said = self.thread.join().unwrap();
        assert!(!self.folder.path().join("socket").exists());
        let log = ChipLog::read(&std::fs::read(self.folder.path().join("log")).unwrap()).unwrap();
        let mut chain = Chain::new(serial(), key().public());
        let checked = |signed: &crate::snapshot::record::SignedRecord| {
            chain.check(signed).unwrap();
            signed.record.event
        };
        (log.records.iter().map(checked).collect(), said)
    }
}

/// Waits for a question.
fn asked(training: &mut Attachment) -> u64 {
    let begin = Instant::now();
    loop {
        if let Some(request) = training.due().unwrap() {
            return request;
        }
        assert!(begin.elapsed() < LIMIT, "no snapshot is due");
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_training_is_attached_asked_and_acknowledged() {
    let running = Running::start(&[100, 1], LIMIT);
    let mut training = running.attach().unwrap();
    assert_eq!((training.serial(), training.record()), (&serial(), 1));
    assert_eq!(training.due().unwrap(), None);
    let second = running.attach().err().unwrap().to_string();
    assert_eq!(second, "the agent refuses: another training is attached to this chip");
    running.set(100);
    let request = asked(&mut training);
    // The second one is due by then, too.
    running.set(101);
    assert_eq!(training.answer(request, 7, Digest([5; 32])).unwrap(), Taken::Kept(3));
    // When the answer came, the record was in the file.
    let bytes = std::fs::read(running.folder.path().join("log")).unwrap();
    assert_eq!(ChipLog::read(&bytes).unwrap().records.len(), 4);
    drop(training);
    let begin = Instant::now();
    while running.attach().is_err() {
        assert!(begin.elapsed() < LIMIT, "the first training's place is not free");
    }
    let (events, said) = running.stop();
    assert!(!said.is_empty() && said.iter().all(|why| *why == second), "{said:?}");
    let shard = match events[1] {
        Event::Attach { shard, computation } if computation == Digest([3; 32]) => shard,
        event => panic!("{event:?}"),
    };
    assert_eq!((shard.map, shard.code), (ShardMap::Whole.digest(), Digest([4; 32])));
    assert_eq!(events[2..4], [Event::Snapshot { shard, step: 7, digest: Digest([5; 32]) }; 2]);
    assert_eq!(events[4], events[1]);
}

#[test]
fn an_answer_after_the_patience_is_late_and_the_training_goes_on() {
    let running = Running::start(&[100, 400], Duration::from_millis(200));
    let mut training = running.attach().unwrap();
    running.set(100);
    let request = asked(&mut training);
    running.set(350);
    assert_eq!(training.answer(request, 1, Digest([5; 32])).unwrap(), Taken::Late);
    // A number that nobody asked for is late as well.
    assert_eq!(training.answer(77, 1, Digest([5; 32])).unwrap(), Taken::Late);
    assert_eq!(training.unanswered(), 2);
    running.set(500);
    asked(&mut training);
    drop(training);
    let (events, _) = running.stop();
    let Event::Attach { shard, .. } = events[1] else { panic!("{events:?}") };
    assert_eq!(events[2..], [Event::Unanswered(shard); 2]);
}

/// The agent's answer to a peer whose bytes are not those of a trainer.
fn answered(socket: &Path, bytes: &[u8]) -> String {
    let mut stream = UnixStream::connect(socket).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    // The agent may have enough before all is sent.
    let _ = stream.write_all(bytes);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8(answer).unwrap()
}

#[test]
fn hostile_trainers_get_an_end_and_the_agent_goes_on() {
    let running = Running::start(&[], LIMIT);
    let hash = "ab".repeat(32);
    let attach = |version: u32, map: &str| {
        format!(
            "{{\"say\":\"attach\",\"version\":{version},\"computation\":\"{hash}\",\"map\":\"{map}\",\"code\":\"{hash}\"}}\n"
        )
    };
    let snapshot = format!("{{\"say\":\"snapshot\",\"request\":1,\"step\":1,\"digest\":\"{hash}\"}}\n");
    let whole = attach(1, "tiebreak shard map 1\\nwhole\\n");
    for (bytes, says) in [
        ("\n".into(), "message: "),
        ("nonsense\n".into(), "message: "),
        ("[".repeat(1 << 20) + "\n", "message: "),
        (snapshot.clone(), "a snapshot before the attach"),
        (attach(2, ""), "this agent speaks version 1, not 2"),
        (attach(1, "no map"), "shard map: the first line is"),
        (whole.clone() + &whole, "a second attach"),
        (whole.clone() + &"x".repeat(100_000), "line is larger than the limit of 4096"),
        (whole.clone() + "\u{0}\u{1}\n", "message: "),
    ] {
        let answer = answered(&running.socket(), bytes.as_bytes());
        assert!(answer.contains(says), "{:?}: {answer}", &bytes[..bytes.len().min(100)]);
    }
    let endless = vec![b'x'; ATTACH_MAX + (1 << 20)];
    answered(&running.socket(), &endless);
    // Connections that say nothing fill the places, and one more is told so.
    let silent: Vec<UnixStream> =
        (0..super::CONNECTIONS).map(|_| UnixStream::connect(running.socket()).unwrap()).collect();
    assert!(answered(&running.socket(), b"").contains("too many connections"));
    drop(silent);
    let begin = Instant::now();
    while running.attach().is_err() {
        assert!(begin.elapsed() < LIMIT, "nobody is attached any more");
    }
    let (events, said) = running.stop();
    let attachments = events.iter().filter(|event| matches!(event, Event::Attach { .. })).count();
    assert_eq!((attachments, events.len()), (4, 5));
    assert!(said.iter().any(|why| why == "line is larger than the limit of 33558528"), "{said:?}");
}

/// The error of a trainer whose agent says these bytes, and then nothing more.
fn attached_to(bytes: &'static [u8], limit: Duration) -> String {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("socket");
    let listener = UnixListener::bind(&socket).unwrap();
    let agent = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let _ = stream.write_all(bytes);
        // Until the trainer has enough.
        let _ = stream.read_to_end(&mut Vec::new());
    });
    let attached = Attachment::attach(&socket, Digest([3; 32]), &ShardMap::Whole, Digest([4; 32]), limit);
    let error = attached.and_then(|mut training| {
        let request = training.due()?.expect("the agent asks at once");
        training.answer(request, 1, Digest([5; 32]))
    });
    let error = error.unwrap_err().to_string();
    agent.join().unwrap();
    error
}

#[test]
fn hostile_agents_give_a_trainer_an_error_in_time() {
    const ATTACHED: &str = "{\"say\":\"attached\",\"version\":1,\"serial\":\"chip-1\",\"record\":1}\n{\"say\":\"due\",\"request\":9}\n";
    let leaked = |text: String| -> &'static [u8] { Vec::leak(text.into_bytes()) };
    let attached = |more: &str| leaked(format!("{ATTACHED}{more}"));
    let short = Duration::from_millis(200);
    for (bytes, says) in [
        (&b"nonsense\n"[..], "message: "),
        (b"{\"say\":\"kept\",\"request\":1,\"record\":1}\n", "has no place here"),
        (
            b"{\"say\":\"attached\",\"version\":2,\"serial\":\"chip-1\",\"record\":1}\n",
            "the agent speaks version 2",
        ),
        (b"{\"say\":\"refused\",\"why\":\"not you\"}\n", "the agent refuses: not you"),
        (leaked("x".repeat(100_000)), "line is larger than the limit of 4096"),
        (attached("{\"say\":\"kept\",\"request\":8,\"record\":1}\n"), "has no place here"),
        (
            attached("{\"say\":\"refused\",\"why\":\"the log is full\"}\n"),
            "the agent refuses: the log is full",
        ),
        (attached("\u{0}\n"), "message: "),
        (attached(&"{\"say\":\"due\",\"request\":10}\n".repeat(100)), "number of lines at a time"),
    ] {
        let error = attached_to(bytes, LIMIT);
        assert!(error.contains(says), "{}: {error}", String::from_utf8_lossy(&bytes[..bytes.len().min(200)]));
    }
    for bytes in [&b""[..], b"{\"say\"", attached(""), attached("{\"say\":\"due\",\"request\":10}\n")] {
        let error = attached_to(bytes, short);
        assert!(error.contains("said nothing for"), "{error}");
    }
}

#[test]
fn a_socket_of_an_agent_that_is_gone_is_replaced_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    drop(UnixListener::bind(&path).unwrap());
    let running = Server::listen(&path).unwrap();
    let error = Server::listen(&path).err().unwrap();
    assert!(error.to_string().contains("another agent listens there"), "{error}");
    drop(running);
    let file = folder.path().join("file");
    std::fs::write(&file, "mine").unwrap();
    let error = Server::listen(&file).err().unwrap();
    assert!(error.to_string().contains("something else has this path"), "{error}");
    assert_eq!(std::fs::read(&file).unwrap(), b"mine");
}
