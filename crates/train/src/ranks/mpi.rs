//! Gradients over MPI; everything else stays on TCP.
//!
//! MPI carries bytes, by sends and receives alone: no reduction of MPI's is called. One thread of the process makes all its
//! calls. If a rank is gone, MPI's calls need not return, so that thread and its buffers are then left until the process ends, and
//! the rank's connection says which rank it is.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use mpi::Threading;
use mpi::request::{LocalScope, Request};
use mpi::topology::SimpleCommunicator;
use mpi::traits::{Communicator, Destination, Equivalence, Root, Source};

use super::collective::{Collective, MessageKind};
use super::tcp::Tcp;
use crate::error::{RankError, TrainError};
use tiebreak_record::commit::Malformed;

/// The most bytes of one send: MPI counts in 32 bits, and longer messages go in pieces.
const PIECE: usize = 1 << 20;
/// The tag of all messages.
const TAG: i32 = 7;
/// The most bytes that rank 0 tells all others when they meet.
pub const MEET_MAX: usize = 1024;
/// The time for which an exchange asks MPI again and again; later it pauses between.
const BUSY: Duration = Duration::from_millis(2);
/// That pause.
const PAUSE: Duration = Duration::from_micros(50);
/// The time between two looks at the ranks' connections.
const LOOK: Duration = Duration::from_millis(20);
/// The time that other ranks have to give their reasons after a failure that affects all.
const GRACE: Duration = Duration::from_secs(2);

/// The time for which a rank that has failed stays: mpirun ends all processes when one ends with an error, and rank 0 is to say the
/// reason first.
const STAY: Duration = Duration::from_secs(3);

/// The messages of each rank.
type Messages = Vec<Vec<Vec<u8>>>;

/// What the thread of MPI is to do.
enum Order {
    /// Tell all others these bytes if this is rank 0, or hear them.
    Meet(Vec<u8>),
    /// Send and receive.
    Exchange { outgoing: Messages, incoming: Vec<Vec<usize>> },
    /// End MPI.
    End,
}

/// What the thread of MPI has done.
enum Done {
    Met(Vec<u8>),
    /// The bytes of each rank, or the rank whose message has another length.
    Exchanged(Result<Messages, u32>),
    Ended,
}

/// What MPI says of this process.
struct Facts {
    rank: u32,
    ranks: u32,
    local: (u32, u32),
    host: String,
    library: String,
}

/// The processes that MPI started together.
pub struct World {
    /// This rank, from 0.
    pub rank: u32,
    /// The number of ranks.
    pub ranks: u32,
    /// This rank's number on its machine, and the number of ranks there.
    pub local: (u32, u32),
    /// The name of this machine.
    pub host: String,
    /// The library, for people.
    library: String,
    orders: Sender<Order>,
    done: Receiver<Done>,
    /// The pieces that have gone or come so far.
    moved: Arc<AtomicU64>,
}

impl World {
    /// Begins MPI.
    ///
    /// # Errors
    /// If MPI cannot begin, or does not within `timeout`.
    pub fn join(timeout: Duration) -> Result<World, RankError> {
        let refused = |why: String| RankError::Refused(format!("--transport mpi: {why}"));
        let ((orders, receiver), (sender, done), (hello, facts)) = (channel(), channel(), channel());
        let moved = Arc::new(AtomicU64::new(0));
        let counting = moved.clone();
        let work = move || serve(&hello, &receiver, &sender, &counting);
        let thread = std::thread::Builder::new().name("mpi".into()).spawn(work);
        thread.map_err(|error| refused(format!("cannot start a thread: {error}")))?;
        let facts: Result<Facts, String> = facts.recv_timeout(timeout).map_err(|_| {
            refused(format!("MPI did not begin within {} s (--rank-timeout)", timeout.as_secs()))
        })?;
        let facts = facts.map_err(refused)?;
        let Facts { rank, ranks, local, host, library } = facts;
        Ok(World { rank, ranks, local, host, library, orders, done, moved })
    }

    /// Tells all other ranks `text` if this is rank 0; returns rank 0's text.
    ///
    /// # Errors
    /// If the text is too long, or not all ranks take part within `timeout`.
    pub fn meet(&self, text: &str, timeout: Duration) -> Result<String, RankError> {
        let refused = |why: String| RankError::Refused(format!("--transport mpi: {why}"));
        let mut bytes = vec![0; MEET_MAX];
        let Some(room) = bytes.get_mut(..text.len()).filter(|_| text.len() < MEET_MAX) else {
            return Err(refused(format!("{} bytes are too many to begin with", text.len())));
        };
        room.copy_from_slice(text.as_bytes());
        let _ = self.orders.send(Order::Meet(bytes));
        let Ok(Done::Met(bytes)) = self.done.recv_timeout(timeout) else {
            let seconds = timeout.as_secs();
            return Err(refused(format!("not all ranks began within {seconds} s (--rank-timeout)")));
        };
        let text = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
        String::from_utf8(text.to_vec()).map_err(|_| refused("rank 0 tells no text".into()))
    }
}

/// The thread of MPI.
fn serve(
    hello: &Sender<Result<Facts, String>>,
    orders: &Receiver<Order>,
    done: &Sender<Done>,
    moved: &AtomicU64,
) {
    // Begun already is not possible: a process has one training.
    let Some((universe, provided)) = mpi::initialize_with_threading(Threading::Funneled) else { return };
    if provided < Threading::Funneled {
        let why =
            "this MPI library lets no second thread run (MPI_THREAD_SINGLE): it needs MPI_THREAD_FUNNELED";
        let _ = hello.send(Err(why.into()));
        std::mem::forget(universe);
        return;
    }
    let world = universe.world();
    let here = world.split_shared(world.rank());
    let number = |rank: i32| u32::try_from(rank).unwrap_or_default();
    let library = mpi::environment::library_version().unwrap_or_default();
    let library = library.split([',', '\n']).next().unwrap_or_default().trim();
    let facts = Facts {
        rank: number(world.rank()),
        ranks: number(world.size()),
        local: (number(here.rank()), number(here.size())),
        host: mpi::environment::processor_name().unwrap_or_default(),
        library: format!("MPI ({})", library.escape_default()),
    };
    drop(here);
    let mut goes_on = hello.send(Ok(facts)).is_ok();
    while goes_on {
        let answer = match orders.recv() {
            Ok(Order::Meet(mut bytes)) => {
                world.process_at_rank(0).broadcast_into(&mut bytes[..]);
                Done::Met(bytes)
            }
            Ok(Order::Exchange { outgoing, incoming }) => {
                Done::Exchanged(exchanged(&world, &outgoing, &incoming, moved))
            }
            Ok(Order::End) => {
                drop(universe);
                // Nobody need hear it.
                let _ = done.send(Done::Ended);
                return;
            }
            Err(_) => break,
        };
        goes_on = done.send(answer).is_ok();
    }
    // MPI would wait here for ranks that are gone.
    std::mem::forget(universe);
}

/// Sends and receives, in pieces. Does not return if a rank is gone.
fn exchanged(
    world: &SimpleCommunicator,
    outgoing: &[Vec<Vec<u8>>],
    incoming: &[Vec<usize>],
    count: &AtomicU64,
) -> Result<Messages, u32> {
    let own = world.rank();
    let blank = |lens: &Vec<usize>| lens.iter().map(|&len| vec![0u8; len]).collect::<Vec<_>>();
    let mut received: Messages = incoming.iter().map(blank).collect();
    let mut wrong = None;
    mpi::request::scope(|scope| {
        let mut receiving = VecDeque::new();
        let mut sending: VecDeque<Request<[u8], &LocalScope>> = VecDeque::new();
        for (from, messages) in (0..).zip(&mut received).filter(|(from, _)| *from != own) {
            for piece in messages.iter_mut().flat_map(|message| message.chunks_mut(PIECE)) {
                let len = piece.len();
                let process = world.process_at_rank(from);
                let request = process.immediate_receive_into_with_tag(scope, piece, TAG);
                receiving.push_back((from, len, request));
            }
        }
        for (to, messages) in (0..).zip(outgoing).filter(|(to, _)| *to != own) {
            for piece in messages.iter().flat_map(|message| message.chunks(PIECE)) {
                sending.push_back(world.process_at_rank(to).immediate_send_with_tag(scope, piece, TAG));
            }
        }
        let mut last = Instant::now();
        while !receiving.is_empty() || !sending.is_empty() {
            let mut moved = false;
            if let Some((from, len, request)) = receiving.pop_front() {
                match request.test() {
                    Ok(status) => {
                        moved = true;
                        if usize::try_from(status.count(u8::equivalent_datatype())) != Ok(len) {
                            wrong = Some(from as u32);
                        }
                    }
                    Err(request) => receiving.push_front((from, len, request)),
                }
            }
            if let Some(request) = sending.pop_front() {
                match request.test() {
                    Ok(_) => moved = true,
                    Err(request) => sending.push_front(request),
                }
            }
            if moved {
                count.fetch_add(1, Ordering::Relaxed);
                last = Instant::now();
            } else if last.elapsed() < BUSY {
                std::thread::yield_now();
            } else {
                std::thread::sleep(PAUSE);
            }
        }
    });
    wrong.map_or(Ok(received), Err)
}

/// TCP, with MPI for gradients.
pub struct Mpi {
    tcp: Tcp,
    world: World,
    exchanges: u32,
    /// True when something failed: then MPI is not ended, since other ranks may be gone.
    failed: bool,
}

impl Mpi {
    /// The network that sends gradients over MPI, and everything else over `tcp`.
    pub fn over(tcp: Tcp, world: World) -> Mpi {
        Mpi { tcp, world, exchanges: 0, failed: false }
    }

    /// Waits for MPI, and watches the ranks meanwhile.
    fn wait(&mut self) -> Result<Messages, TrainError> {
        let (mut begin, timeout) = (Instant::now(), self.tcp.place().timeout);
        let mut moved = self.world.moved.load(Ordering::Relaxed);
        loop {
            let now = self.world.moved.load(Ordering::Relaxed);
            if now != moved {
                (moved, begin) = (now, Instant::now());
            }
            match self.world.done.recv_timeout(LOOK) {
                Ok(Done::Exchanged(Ok(received))) => return Ok(received),
                Ok(Done::Exchanged(Err(rank))) => {
                    let source = Malformed::Truncated { what: "message" };
                    return Err(RankError::Malformed { rank, source }.into());
                }
                Err(RecvTimeoutError::Timeout) => {}
                Ok(Done::Met(_) | Done::Ended) | Err(RecvTimeoutError::Disconnected) => {
                    return Err(RankError::Mpi { why: "MPI has ended in this process".into() }.into());
                }
            }
            self.tcp.look()?;
            if begin.elapsed() > timeout {
                let seconds = timeout.as_secs();
                return Err(match self.tcp.silent(GRACE).first() {
                    Some(&rank) => RankError::Hung { rank, seconds },
                    None => {
                        let why =
                            format!("MPI moved nothing of the gradients for {seconds} s (--rank-timeout)");
                        RankError::Mpi { why }
                    }
                }
                .into());
            }
        }
    }

    fn exchange(
        &mut self,
        outgoing: &[Vec<&[u8]>],
        incoming: &[Vec<usize>],
        each: &mut dyn FnMut(&[u8]) -> Result<(), TrainError>,
    ) -> Result<(), TrainError> {
        let own = self.tcp.rank() as usize;
        let messages = |(rank, messages): (usize, &Vec<&[u8]>)| match rank == own {
            true => Vec::new(),
            false => messages.iter().map(|message| message.to_vec()).collect(),
        };
        let sent = outgoing.iter().enumerate().map(messages).collect();
        let mut lens = incoming.to_vec();
        lens[own].clear();
        // A rank that is late, hangs or is gone is named before MPI waits for it.
        self.tcp.all_here(self.exchanges)?;
        self.exchanges += 1;
        let _ = self.world.orders.send(Order::Exchange { outgoing: sent, incoming: lens });
        let received = self.wait()?;
        for (rank, messages) in received.iter().enumerate() {
            if rank == own {
                outgoing[own].iter().try_for_each(|message| each(message))?;
            }
            messages.iter().try_for_each(|message| each(message))?;
        }
        Ok(())
    }

    fn noted<T>(&mut self, result: Result<T, TrainError>) -> Result<T, TrainError> {
        self.failed |= result.is_err();
        result
    }
}

impl Drop for Mpi {
    /// Ends MPI when all ranks do.
    fn drop(&mut self) {
        if !self.failed && !std::thread::panicking() && self.world.orders.send(Order::End).is_ok() {
            // A rank that never ends is the launcher's to end.
            let _ = self.world.done.recv_timeout(self.tcp.place().timeout);
        }
    }
}

impl Collective for Mpi {
    fn rank(&self) -> u32 {
        self.tcp.rank()
    }

    fn ranks(&self) -> u32 {
        self.tcp.ranks()
    }

    fn describe(&self) -> String {
        self.world.library.clone()
    }

    fn send(&mut self, to: u32, kind: MessageKind, bytes: &[u8]) -> Result<(), TrainError> {
        let sent = self.tcp.send(to, kind, bytes);
        self.noted(sent)
    }

    fn receive(&mut self, from: u32, kind: MessageKind, max: u64) -> Result<Vec<u8>, TrainError> {
        let received = self.tcp.receive(from, kind, max);
        self.noted(received)
    }

    fn all_to_all(
        &mut self,
        outgoing: &[Vec<&[u8]>],
        incoming: &[Vec<usize>],
        each: &mut dyn FnMut(&[u8]) -> Result<(), TrainError>,
    ) -> Result<(), TrainError> {
        let exchanged = self.exchange(outgoing, incoming, each);
        self.noted(exchanged)
    }

    fn abort(&mut self, why: &str) -> bool {
        self.failed = true;
        let told = self.tcp.abort(why);
        if told {
            self.tcp.silent(STAY);
        }
        told
    }
}
