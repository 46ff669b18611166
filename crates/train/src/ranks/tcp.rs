//! Ranks over TCP: every two are connected. Ranks meet at rank 0, which sends each the addresses of the others.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use super::collective::{Collective, MessageKind};
pub use super::link::RankPlace;
use super::link::{Link, NoLink};
use crate::error::RankError;
use crate::error::TrainError;
use tiebreak_record::commit::Malformed;
use tiebreak_record::commit::codec::{Decoder, Encoder};

/// The time that a connecting process has, in all, to show that it knows the run's secret.
const GREETING: Duration = Duration::from_secs(5);
/// The number of unproven connections, beyond the number of ranks, that may be open; above it the oldest are ended.
const UNKNOWN_MAX: usize = 64;
/// The number of refused connections that are reported while rank 0 waits for ranks.
const SAID_MAX: u64 = 20;
/// The time that rank 0 waits longer than others.
const GRACE: Duration = Duration::from_secs(2);
/// The pause between two attempts to accept a connection.
const PAUSE: Duration = Duration::from_millis(5);
/// The most bytes of an address in text.
const ADDRESS_MAX: usize = 64;
/// The number of refused connections that an error names.
const REFUSED_MAX: usize = 3;

/// All links of a rank.
pub struct Tcp {
    place: RankPlace,
    /// The link to each rank; `None` for the rank itself.
    links: Vec<Option<Link>>,
}

/// Receives events while rank 0 waits for the others.
pub trait Waiting {
    /// Called again and again; an error ends the waiting.
    ///
    /// # Errors
    /// If the waiting is to end.
    fn check(&mut self) -> Result<(), RankError>;

    /// Called when a connection was refused.
    fn refused(&mut self, why: &str);
}

/// Waits without reports.
pub struct Quiet;

impl Waiting for Quiet {
    fn check(&mut self) -> Result<(), RankError> {
        Ok(())
    }

    fn refused(&mut self, _: &str) {}
}

/// A rank that connected, with its address and the port it listens on.
struct Joined {
    link: Link,
    address: IpAddr,
    port: u16,
}

/// The result of a greeting: the link and the port that the peer listens on; or the reason for a refusal; or an error of a peer
/// that knows the secret.
type Greeted = Result<Result<(Link, u16), String>, RankError>;

/// Connections that have not shown yet that they know the secret, the oldest first. Each has a thread of its own, so none waits
/// for another.
struct Greetings {
    place: RankPlace,
    /// The connection's number, the time when it came, and a handle to end it with.
    pending: VecDeque<(u64, Instant, TcpStream)>,
    accepted: u64,
    sender: Sender<(u64, SocketAddr, Greeted)>,
    done: Receiver<(u64, SocketAddr, Greeted)>,
}

impl Greetings {
    fn new(place: &RankPlace) -> Greetings {
        let (sender, done) = channel();
        Greetings { place: place.clone(), pending: VecDeque::new(), accepted: 0, sender, done }
    }

    /// Greets a connection in a thread of its own. If the machine has no thread or no second handle for it, the connection is
    /// dropped.
    fn begin(&mut self, stream: TcpStream, from: SocketAddr) {
        let Ok(ending) = stream.try_clone() else { return };
        let number = self.accepted;
        let (place, sender) = (self.place.clone(), self.sender.clone());
        let greet = move || {
            // The receiver is gone when this rank has all the ranks that it waited for.
            let _ = sender.send((number, from, greet(stream, &place)));
        };
        if std::thread::Builder::new().spawn(greet).is_ok() {
            self.accepted += 1;
            self.pending.push_back((number, Instant::now(), ending));
        }
    }

    /// Ends connections whose greeting takes longer than [`GREETING`], and the oldest ones if there are too many. Their threads
    /// then end and report.
    fn end_old(&mut self) {
        let most = self.place.ranks as usize + UNKNOWN_MAX;
        while let Some((_, begin, stream)) = self.pending.front()
            && (begin.elapsed() > GREETING || self.pending.len() > most)
        {
            let _ = stream.shutdown(Shutdown::Both);
            self.pending.pop_front();
        }
    }

    /// The next greeting that has ended, if there is one.
    fn next(&mut self) -> Option<(SocketAddr, Greeted)> {
        let (number, from, greeted) = self.done.try_recv().ok()?;
        self.pending.retain(|(pending, ..)| *pending != number);
        Some((from, greeted))
    }
}

impl Drop for Greetings {
    fn drop(&mut self) {
        for (_, _, stream) in &self.pending {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

/// Connections that were refused: their number, and the reasons of the first few.
#[derive(Default)]
struct Refused {
    count: u64,
    why: Vec<String>,
}

impl Refused {
    fn add(&mut self, why: String, waiting: &mut dyn Waiting) {
        self.count += 1;
        // A peer that connects again and again must not fill the screen.
        if self.count <= SAID_MAX {
            waiting.refused(&why);
        }
        if self.why.len() < REFUSED_MAX {
            self.why.push(why);
        }
    }

    /// The error of a rank that waited too long for those of `missing`.
    fn missing(&self, missing: &[String], timeout: Duration) -> RankError {
        let (missing, seconds) = (missing.join(", "), timeout.as_secs());
        let mut why = format!("rank {missing} did not join within {seconds} s (--rank-timeout)");
        if self.count > 0 {
            why += &format!("; refused connections: {} ({})", self.count, self.why.join("; "));
        }
        RankError::Refused(why)
    }
}

/// Waits until every rank of `wanted` has connected.
fn accept(
    listener: &TcpListener,
    place: &RankPlace,
    wanted: std::ops::Range<u32>,
    waiting: &mut dyn Waiting,
) -> Result<Vec<Joined>, RankError> {
    let begin = Instant::now();
    let io = |error: io::Error| RankError::Refused(format!("cannot wait for other ranks: {error}"));
    listener.set_nonblocking(true).map_err(io)?;
    let mut joined: Vec<Option<Joined>> = wanted.clone().map(|_| None).collect();
    let mut greetings = Greetings::new(place);
    let mut refused = Refused::default();
    while joined.iter().any(Option::is_none) {
        waiting.check()?;
        if begin.elapsed() > place.timeout {
            let missing = wanted.clone().zip(&joined).filter(|(_, joined)| joined.is_none());
            let missing: Vec<String> = missing.map(|(rank, _)| rank.to_string()).collect();
            return Err(refused.missing(&missing, place.timeout));
        }
        match listener.accept() {
            Ok((stream, from)) => greetings.begin(stream, from),
            // No connection is waiting, the connection is gone again, or the machine has no more handles.
            Err(_) => std::thread::sleep(PAUSE),
        }
        greetings.end_old();
        while let Some((from, greeted)) = greetings.next() {
            match greeted? {
                Ok((link, port)) => {
                    let new = Joined { link, address: from.ip(), port };
                    take(&mut joined, wanted.start, place, from, new)?;
                }
                Err(why) => refused.add(format!("{from}: {why}"), waiting),
            }
        }
    }
    Ok(joined.into_iter().flatten().collect())
}

/// Stores a rank that knows the secret among the awaited ranks, the first of which is rank `first`.
fn take(
    joined: &mut [Option<Joined>],
    first: u32,
    place: &RankPlace,
    from: SocketAddr,
    new: Joined,
) -> Result<(), RankError> {
    let rank = new.link.peer;
    let slot = rank.checked_sub(first).and_then(|slot| joined.get_mut(slot as usize));
    match slot {
        Some(slot @ None) => {
            *slot = Some(new);
            Ok(())
        }
        Some(Some(_)) => {
            let why = format!("two processes say that they are rank {rank}; the second is at {from}");
            Err(RankError::Refused(why))
        }
        None => {
            let why = format!("the process at {from} says that it is rank {rank}, of {} ranks", place.ranks);
            Err(RankError::Refused(why))
        }
    }
}

/// A connection's rank and the port it listens on, if it belongs to this run.
///
/// # Errors
/// If the peer knows the secret and is for another number of ranks. A peer that does not know the secret is refused and harms
/// nobody.
fn greet(stream: TcpStream, place: &RankPlace) -> Greeted {
    let mut link = match Link::open(stream, &RankPlace { timeout: GREETING, ..place.clone() }) {
        Ok(link) => link,
        Err(NoLink::Stranger(why)) => return Ok(Err(why)),
        Err(NoLink::Io(error)) => return Ok(Err(format!("it did not say who it is: {error}"))),
    };
    let hello = match link.incoming.receive(MessageKind::Hello, 7) {
        Ok(hello) => hello,
        Err(error) => {
            // The peer cannot check this frame either, which shows it that the secrets differ.
            link.outgoing.abort("another secret");
            // Nothing has proved the rank number that the peer claims.
            return Ok(Err(match error {
                RankError::Malformed { source, .. } => source.to_string(),
                _ => "it did not show that it knows the run's secret".into(),
            }));
        }
    };
    let mut d = Decoder::new("hello", &hello);
    let read = d.u32().and_then(|ranks| Ok((ranks, d.take(3)?)));
    let rank = link.peer;
    let (ranks, rest) = read.map_err(|source| RankError::Malformed { rank, source })?;
    let mut refused = |why: String| {
        link.outgoing.abort(&why);
        Err(RankError::Refused(why))
    };
    if ranks != place.ranks {
        let why =
            format!("rank {rank} was started for {ranks} ranks, rank {} for {}", place.rank, place.ranks);
        return refused(why);
    }
    if rest[2] != place.transport as u8 {
        let name = |transport: u8| match transport {
            1 => "nccl",
            2 => "mpi",
            _ => "tcp",
        };
        let (theirs, own) = (name(rest[2]), name(place.transport as u8));
        let why = format!(
            "rank {rank} was started with --transport {theirs}, rank {} with {own}: give all the same",
            place.rank
        );
        return refused(why);
    }
    let port = u16::from_le_bytes([rest[0], rest[1]]);
    let lost = |error: io::Error| RankError::Lost { rank, why: error.to_string() };
    link.outgoing.send(MessageKind::Hello, &[])?;
    link.set_timeout(place.timeout).map_err(lost)?;
    Ok(Ok((link, port)))
}

/// Connects to `rank` at one of `addresses`, where it may not listen yet.
fn connect(addresses: &[SocketAddr], rank: u32, place: &RankPlace) -> Result<TcpStream, RankError> {
    let begin = Instant::now();
    loop {
        let mut last = "the name has no address".to_string();
        for address in addresses {
            match TcpStream::connect_timeout(address, place.timeout) {
                Ok(stream) => return Ok(stream),
                Err(error) => last = format!("{address}: {error}"),
            }
        }
        if begin.elapsed() > place.timeout {
            let seconds = place.timeout.as_secs();
            let why = format!("rank {rank} cannot be reached within {seconds} s (--rank-timeout): {last}");
            return Err(RankError::Refused(why));
        }
        std::thread::sleep(20 * PAUSE);
    }
}

/// Connects to `rank` and introduces this rank; `port` gives the port on which this rank listens, at the address that reaches the
/// other. A connection that is closed before the introduction was one too many there, and is made again.
fn introduced(
    addresses: &[SocketAddr],
    rank: u32,
    place: &RankPlace,
    mut port: impl FnMut(&TcpStream) -> Result<u16, RankError>,
) -> Result<Link, RankError> {
    let begin = Instant::now();
    loop {
        let stream = connect(addresses, rank, place)?;
        let port = port(&stream)?;
        match introduce(stream, rank, place, port) {
            Err(RankError::Lost { .. }) if begin.elapsed() < place.timeout => std::thread::sleep(20 * PAUSE),
            other => return other,
        }
    }
}

/// Introduces this rank to `rank` at the other end, with the port that others can connect to.
fn introduce(stream: TcpStream, rank: u32, place: &RankPlace, port: u16) -> Result<Link, RankError> {
    let refused = |why: String| RankError::Refused(format!("rank {rank}: {why}"));
    let mut link = Link::open(stream, place).map_err(|error| match error {
        NoLink::Stranger(why) => refused(why),
        NoLink::Io(error) => RankError::Lost { rank, why: format!("it did not say who it is: {error}") },
    })?;
    if link.peer != rank {
        return Err(refused(format!("it says that it is rank {}", link.peer)));
    }
    let hello = [&place.ranks.to_le_bytes()[..], &port.to_le_bytes(), &[place.transport as u8]].concat();
    link.outgoing.send(MessageKind::Hello, &hello)?;
    match link.incoming.receive(MessageKind::Hello, 0) {
        Err(RankError::Malformed { .. }) => Err(refused("it has another secret".into())),
        other => other.map(|_| link),
    }
}

impl Tcp {
    /// Rank 0: waits at `listener` for the others.
    ///
    /// # Errors
    /// If a rank does not come or is refused, or a connection is lost.
    pub fn host(
        listener: &TcpListener,
        place: RankPlace,
        waiting: &mut dyn Waiting,
    ) -> Result<Tcp, RankError> {
        let mut joined = accept(listener, &place, 1..place.ranks, waiting)?;
        let mut e = Encoder::default();
        for other in &joined {
            e.bytes(SocketAddr::new(other.address, other.port).to_string().as_bytes());
        }
        for Joined { link, .. } in &mut joined {
            link.outgoing.send(MessageKind::Peers, &e.0)?;
            // A rank that waits for a third one must report that before rank 0 has waited too long for the waiting rank.
            let rank = link.peer;
            let lost = |error: io::Error| RankError::Lost { rank, why: error.to_string() };
            link.set_timeout(place.timeout + GRACE).map_err(lost)?;
        }
        let links = [None].into_iter().chain(joined.into_iter().map(|other| Some(other.link))).collect();
        Ok(Tcp { place, links })
    }

    /// Every other rank: connects to rank 0 at one of `coordinator`, then to the other ranks.
    ///
    /// # Errors
    /// If rank 0 cannot be reached or refuses this rank, or a connection is lost.
    pub fn join(coordinator: &[SocketAddr], place: RankPlace) -> Result<Tcp, RankError> {
        let io = |error: io::Error| RankError::Refused(format!("cannot listen for other ranks: {error}"));
        let mut listening = None;
        let mut first = introduced(coordinator, 0, &place, |stream| {
            // Listen at the address from which rank 0 is reached, so at no interface that nobody asked for.
            let listener =
                stream.local_addr().and_then(|own| TcpListener::bind((own.ip(), 0))).map_err(io)?;
            let port = listener.local_addr().map_err(io)?.port();
            listening = Some(listener);
            Ok(port)
        })?;
        let listener = listening.expect("whoever is introduced listens");
        let others = place.ranks as usize - 1;
        let peers = first.incoming.receive(MessageKind::Peers, (others * (4 + ADDRESS_MAX)) as u64)?;
        let malformed = |source| RankError::Malformed { rank: 0, source };
        let mut d = Decoder::new("peers", &peers);
        let mut links = vec![Some(first)];
        for rank in 1..place.ranks {
            let text = d.text(ADDRESS_MAX).map_err(malformed)?;
            let no_address = |_| malformed(Malformed::invalid("peers", format!("{text:?} is no address")));
            let address = text.parse().map_err(no_address)?;
            if rank < place.rank {
                links.push(Some(introduced(&[address], rank, &place, |_| Ok(0))?));
            }
        }
        links.push(None);
        let above = accept(&listener, &place, place.rank + 1..place.ranks, &mut Quiet)?;
        links.extend(above.into_iter().map(|other| Some(other.link)));
        Ok(Tcp { place, links })
    }

    /// This rank's configuration.
    pub fn place(&self) -> &RankPlace {
        &self.place
    }

    /// Checks without waiting that all ranks' connections are still open.
    ///
    /// # Errors
    /// If a connection is closed, or a rank has sent its reason for stopping.
    pub fn look(&mut self) -> Result<(), RankError> {
        self.links.iter_mut().flatten().try_for_each(Link::look)
    }

    /// Waits until every rank is ready for the exchange of a number.
    ///
    /// # Errors
    /// If a rank is lost or silent, stops, or is ready for another exchange.
    #[cfg(any(feature = "cuda", feature = "mpi"))]
    pub(super) fn all_here(&mut self, exchange: u32) -> Result<(), TrainError> {
        let others: Vec<u32> = (0..self.ranks()).filter(|&rank| rank != self.rank()).collect();
        let number = exchange.to_le_bytes();
        others.iter().try_for_each(|&rank| self.send(rank, MessageKind::Here, &number))?;
        for rank in others {
            let found = self.receive(rank, MessageKind::Here, number.len() as u64)?;
            if found != number {
                let found = found.iter().rev().fold(0u64, |number, byte| number << 8 | u64::from(*byte));
                let why = format!("it is about exchange {found}, and {exchange} is due");
                let source = Malformed::invalid("message", why);
                return Err(RankError::Malformed { rank, source }.into());
            }
        }
        Ok(())
    }

    /// The ranks that stay silent for `patience`: they neither say why they stop, nor close their connection.
    pub fn silent(&mut self, patience: Duration) -> Vec<u32> {
        let begin = Instant::now();
        let mut silent: Vec<&mut Link> = self.links.iter_mut().flatten().collect();
        while !silent.is_empty() && begin.elapsed() < patience {
            silent.retain_mut(|link| link.look().is_ok());
            std::thread::sleep(PAUSE);
        }
        silent.iter().map(|link| link.peer).collect()
    }

    fn link(&mut self, rank: u32) -> &mut Link {
        self.links[rank as usize].as_mut().expect("a rank sends itself no single messages")
    }
}

impl Collective for Tcp {
    fn rank(&self) -> u32 {
        self.place.rank
    }

    fn ranks(&self) -> u32 {
        self.place.ranks
    }

    fn send(&mut self, to: u32, kind: MessageKind, bytes: &[u8]) -> Result<(), TrainError> {
        // A peer that stopped has sent its reason, which tells more than a closed connection.
        let link = self.link(to);
        let Err(error) = link.outgoing.send(kind, bytes) else { return Ok(()) };
        Err(link.last_words().unwrap_or(error).into())
    }

    fn receive(&mut self, from: u32, kind: MessageKind, max: u64) -> Result<Vec<u8>, TrainError> {
        Ok(self.link(from).incoming.receive(kind, max)?)
    }

    /// Every link has a sending thread, so two ranks cannot block each other by sending.
    fn all_to_all(
        &mut self,
        outgoing: &[Vec<&[u8]>],
        incoming: &[Vec<usize>],
        each: &mut dyn FnMut(&[u8]) -> Result<(), TrainError>,
    ) -> Result<(), TrainError> {
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let mut senders = Vec::new();
            let mut receivers = Vec::new();
            for (link, messages) in self.links.iter_mut().zip(outgoing) {
                let Some(Link { outgoing, incoming, .. }) = link else {
                    receivers.push(None);
                    continue;
                };
                receivers.push(Some(incoming));
                let stop = &stop;
                senders.push(scope.spawn(move || outgoing.send_all(MessageKind::Gradient, messages, stop)));
            }
            let mut receive = || -> Result<(), TrainError> {
                for (from, (receiver, lens)) in receivers.iter_mut().zip(incoming).enumerate() {
                    let Some(receiver) = receiver else {
                        outgoing[from].iter().try_for_each(|message| each(message))?;
                        continue;
                    };
                    for &len in lens {
                        let bytes = receiver.receive(MessageKind::Gradient, len as u64)?;
                        if bytes.len() != len {
                            let source = Malformed::Truncated { what: "message" };
                            return Err(RankError::Malformed { rank: from as u32, source }.into());
                        }
                        each(&bytes)?;
                    }
                }
                Ok(())
            };
            // An error of receiving tells more than an error of sending.
            let received = receive();
            // Others learn of the error when this call ends, so no sender may wait for a peer that does not read.
            stop.store(received.is_err(), Relaxed);
            let sent = senders.into_iter().map(|sender| sender.join().expect("a sender does not panic"));
            let sent = sent.collect::<Vec<_>>().into_iter().collect::<Result<(), _>>();
            received?;
            Ok(sent?)
        })
    }

    fn abort(&mut self, why: &str) -> bool {
        let mut told = false;
        for (rank, link) in self.links.iter_mut().enumerate() {
            let done = link.as_mut().is_some_and(|link| link.outgoing.abort(why));
            told |= done && rank == 0;
        }
        told
    }
}
