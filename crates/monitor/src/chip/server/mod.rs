//! An agent behind a Unix socket: one training at a time is attached, and nobody who connects can hold the agent up.

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::io;
use std::net::Shutdown;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use super::agent::Agent;
use super::clock::Clock;
use super::connection::{ChannelError, Connection, Wait, send, unexpected};
use super::keeper::{Keeper, KeeperError};
use super::message::{ATTACH_MAX, FromAgent, FromTrainer, LINE_MAX, VERSION, from_line};
use super::times::Times;
use crate::snapshot::record::{Shard, SignedRecord};
use crate::snapshot::shard_map::ShardMap;

/// The most connections at a time; one of them is attached.
const CONNECTIONS: usize = 4;
/// The time that a peer has for its first line, and to take one of ours.
const MANNERS: Duration = Duration::from_secs(10);

/// Something that happens to the server.
enum Input {
    /// Somebody connected.
    Came(UnixStream),
    /// A connection said something, or is at its end.
    Said(u64, Result<FromTrainer, ChannelError>),
    /// Somebody asks the server to stop.
    Stop,
}

/// Asks a server to stop.
#[derive(Clone)]
pub struct Stopper(SyncSender<Input>);

impl Stopper {
    /// The server returns when it has finished the work at hand.
    pub fn stop(&self) {
        // A server that is gone needs not be asked.
        let _ = self.0.send(Input::Stop);
    }
}

/// The training that waits for the agent, for a keeper that holds both up.
#[derive(Clone, Default)]
pub struct Peer(Arc<Mutex<Option<UnixStream>>>);

impl Peer {
    /// Tells the training that it has to wait on. Called by a keeper, in the thread that runs the agent.
    pub fn waits(&self) {
        if let Some(stream) = &*self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            // A training that is gone needs not wait.
            let _ = send(stream, &FromAgent::Waiting, MANNERS);
        }
    }

    fn is(&self, stream: Option<&UnixStream>) {
        let stream = stream.and_then(|stream| stream.try_clone().ok());
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = stream;
    }
}

/// A socket that an agent listens at.
pub struct Server {
    inputs: Receiver<Input>,
    sender: SyncSender<Input>,
    path: PathBuf,
    peer: Peer,
}

/// Something that a server tells while it runs.
pub enum Told<'a> {
    /// A record was appended, durably.
    Record(&'a SignedRecord),
    /// A connection ended for a reason that is not its own choice.
    Ended(&'a ChannelError),
}

impl Server {
    /// Listens at a path, in place of an agent that is gone. Only this user may connect.
    ///
    /// # Errors
    /// If another agent listens there, something else has the path, or the system refuses.
    pub fn listen(path: &Path) -> io::Result<Server> {
        match fs::symlink_metadata(path) {
            Ok(found) if !found.file_type().is_socket() => {
                return Err(io::Error::new(io::ErrorKind::AlreadyExists, "something else has this path"));
            }
            Ok(_) if UnixStream::connect(path).is_ok() => {
                return Err(io::Error::new(io::ErrorKind::AddrInUse, "another agent listens there"));
            }
            Ok(_) => fs::remove_file(path)?,
            Err(_) => {}
        }
        let listener = UnixListener::bind(path)?;
        fs::set_permissions(path, Permissions::from_mode(0o600))?;
        let (sender, inputs) = sync_channel(2 * CONNECTIONS);
        let came = sender.clone();
        thread::Builder::new().name("accept".into()).spawn(move || {
            for stream in listener.incoming() {
                let Ok(stream) = stream else {
                    // Too many files are open: an accept may work again later.
                    thread::sleep(Duration::from_millis(100));
                    continue;
                };
                if came.send(Input::Came(stream)).is_err() {
                    return;
                }
            }
        })?;
        Ok(Server { inputs, sender, path: path.to_path_buf(), peer: Peer::default() })
    }

    /// The training that waits for the agent, as long as the server runs.
    pub fn peer(&self) -> Peer {
        self.peer.clone()
    }

    /// A handle by which another thread stops the server.
    pub fn stopper(&self) -> Stopper {
        Stopper(self.sender.clone())
    }

    /// Runs an agent until somebody stops the server.
    ///
    /// # Errors
    /// If a record cannot be kept.
    pub fn run<C: Clock, K: Keeper, T: Times>(
        self,
        agent: Agent<C, K, T>,
        told: &mut dyn FnMut(Told),
    ) -> Result<(), KeeperError> {
        let mut serving = Serving {
            agent,
            told,
            sender: self.sender.clone(),
            peer: self.peer.clone(),
            streams: BTreeMap::new(),
            attached: None,
            asked: None,
            requests: 0,
            connections: 0,
        };
        let ended = serving.serve(&self.inputs);
        serving.streams.values().for_each(close);
        ended
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // A path that is gone already is what is wanted.
        let _ = fs::remove_file(&self.path);
    }
}

/// Ends a connection; a peer that has ended it needs nothing.
fn close(stream: &UnixStream) {
    let _ = stream.shutdown(Shutdown::Both);
}

/// Reads a connection's lines until its end.
fn read(id: u64, stream: UnixStream, inputs: &SyncSender<Input>) {
    let mut connection = Connection::new(stream);
    let (mut max, mut wait) = (ATTACH_MAX, Wait::For(MANNERS));
    loop {
        let line = connection.line(max, wait).and_then(|line| line.ok_or(ChannelError::Closed));
        let said = line.and_then(|line| Ok(from_line(&line)?));
        let ended = said.is_err();
        if inputs.send(Input::Said(id, said)).is_err() || ended {
            return;
        }
        (max, wait) = (LINE_MAX, Wait::Ever);
    }
}

/// A server at work.
struct Serving<'a, C, K, T> {
    agent: Agent<C, K, T>,
    told: &'a mut dyn FnMut(Told),
    sender: SyncSender<Input>,
    peer: Peer,
    /// The connections by number.
    streams: BTreeMap<u64, UnixStream>,
    /// The connection whose training is attached.
    attached: Option<u64>,
    /// The question that it has not answered.
    asked: Option<u64>,
    requests: u64,
    connections: u64,
}

impl<C: Clock, K: Keeper, T: Times> Serving<'_, C, K, T> {
    fn serve(&mut self, inputs: &Receiver<Input>) -> Result<(), KeeperError> {
        loop {
            self.agent.poll()?;
            self.ask()?;
            self.tell();
            match inputs.recv_timeout(self.agent.wakes_in()) {
                Ok(Input::Came(stream)) => self.came(stream),
                Ok(Input::Said(id, Ok(message))) => self.said(id, message)?,
                Ok(Input::Said(id, Err(why))) => self.end(id, &why)?,
                Err(RecvTimeoutError::Timeout) => {}
                Ok(Input::Stop) | Err(RecvTimeoutError::Disconnected) => {
                    self.agent.detach()?;
                    self.tell();
                    return Ok(());
                }
            }
        }
    }

    fn tell(&mut self) {
        for record in self.agent.take_appended() {
            (self.told)(Told::Record(&record));
        }
    }

    /// Asks the attached training once for all snapshots that are due.
    fn ask(&mut self) -> Result<(), KeeperError> {
        if !self.agent.asks() {
            self.asked = None;
        }
        let (Some(id), None, true) = (self.attached, self.asked, self.agent.asks()) else { return Ok(()) };
        self.requests += 1;
        self.asked = Some(self.requests);
        self.answer(id, &FromAgent::Due { request: self.requests })
    }

    fn came(&mut self, stream: UnixStream) {
        let id = self.connections;
        self.connections += 1;
        let reader = match stream.try_clone() {
            Ok(reader) if self.streams.len() < CONNECTIONS => reader,
            _ => {
                let why = FromAgent::refused("too many connections are open");
                // The peer sees the end in any case.
                let _ = send(&stream, &why, MANNERS);
                return;
            }
        };
        let inputs = self.sender.clone();
        let started = thread::Builder::new().name("peer".into()).spawn(move || read(id, reader, &inputs));
        if started.is_ok() {
            self.streams.insert(id, stream);
        }
    }

    fn said(&mut self, id: u64, message: FromTrainer) -> Result<(), KeeperError> {
        match message {
            FromTrainer::Attach { .. } if self.attached.is_some_and(|attached| attached != id) => {
                self.refuse(id, "another training is attached to this chip")
            }
            FromTrainer::Attach { version, computation, map, code } if self.attached.is_none() => {
                if version != VERSION {
                    let why = format!("this agent speaks version {VERSION}, not {version}");
                    return self.refuse(id, &why);
                }
                let map = match ShardMap::from_text(&map) {
                    Ok(map) => map.digest(),
                    Err(why) => return self.end(id, &why.into()),
                };
                self.peer.is(self.streams.get(&id));
                let record = self.agent.attach(Shard { map, code }, computation)?;
                self.attached = Some(id);
                let serial = self.agent.serial().clone();
                self.answer(id, &FromAgent::Attached { version: VERSION, serial, record })
            }
            FromTrainer::Snapshot { request, step, digest } if self.attached == Some(id) => {
                // A question whose patience ended is not the one that is asked now.
                self.agent.poll()?;
                let asked = self.agent.asks() && self.asked == Some(request);
                let kept = if asked { self.agent.snapshot(step, digest)? } else { None };
                let answer = match kept {
                    Some(record) => FromAgent::Kept { request, record },
                    None => FromAgent::Late { request },
                };
                if asked {
                    self.asked = None;
                }
                self.answer(id, &answer)
            }
            FromTrainer::Attach { .. } | FromTrainer::Snapshot { .. } => {
                self.end(id, &unexpected(&message).into())
            }
        }
    }

    /// Says something to a connection, which ends if it does not take that.
    fn answer(&mut self, id: u64, message: &FromAgent) -> Result<(), KeeperError> {
        let Some(stream) = self.streams.get(&id) else { return Ok(()) };
        match send(stream, message, MANNERS) {
            Ok(()) => Ok(()),
            Err(why) => self.end(id, &why),
        }
    }

    fn refuse(&mut self, id: u64, why: &str) -> Result<(), KeeperError> {
        self.end(id, &ChannelError::Refused(why.into()))
    }

    /// Ends a connection, and says why if its peer is still there. Snapshots that its training did not answer are unanswered.
    fn end(&mut self, id: u64, why: &ChannelError) -> Result<(), KeeperError> {
        let Some(stream) = self.streams.remove(&id) else { return Ok(()) };
        let words = match why {
            ChannelError::Refused(why) => Some(why.clone()),
            ChannelError::Malformed(why) => Some(why.to_string()),
            ChannelError::Closed | ChannelError::Silent(_) | ChannelError::Io(_) => None,
        };
        if let Some(words) = words {
            // The peer sees the end in any case.
            let _ = send(&stream, &FromAgent::refused(&words), MANNERS);
        }
        close(&stream);
        if !matches!(why, ChannelError::Closed) {
            (self.told)(Told::Ended(why));
        }
        if self.attached == Some(id) {
            (self.attached, self.asked) = (None, None);
            self.peer.is(None);
            self.agent.detach()?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
