//! A training's connection to the agent of its chip, over a Unix socket.

use std::io;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tiebreak_engine::EngineError;
use tiebreak_engine::session::Session;
use tiebreak_monitor::chip::attachment::Attachment;
use tiebreak_monitor::chip::code;
use tiebreak_monitor::chip::connection::ChannelError;
use tiebreak_monitor::snapshot::shard_map::ShardMap;
use tiebreak_record::commit::digest::Digest;
use tiebreak_run::run::{RunError, shell};
use tiebreak_run::step::{StepError, state_digests, state_root};

use super::snapshots::Snapshots;
use crate::cli::view::report::{Exit, Failure, Printer};

/// The time that an agent has to append a record.
const LIMIT: Duration = Duration::from_secs(60);

/// A training that is attached.
struct Attached {
    attachment: Attachment,
    map: ShardMap,
    socket: PathBuf,
}

/// Checks that an agent listens at a socket.
pub fn listens(socket: &Path) -> Result<(), Failure> {
    UnixStream::connect(socket).map(drop).map_err(|error| unattached(socket, error.into()))
}

/// Attaches a training to the agent at a socket. The agent logs it before it sees any state.
pub fn attach(
    printer: Printer,
    socket: &Path,
    map: ShardMap,
    computation: Digest,
) -> Result<Box<dyn Snapshots>, Failure> {
    let code = code::running().map_err(|error| {
        Failure::new(Exit::Undecided, format!("this program's own file cannot be read: {error}"))
    })?;
    let attachment = Attachment::attach(socket, computation, &map, code, LIMIT);
    let attachment = attachment.map_err(|error| unattached(socket, error))?;
    let (serial, record) = (attachment.serial(), attachment.record());
    printer.say(format!("chip {serial} logs this training: record {record} of {}", socket.display()));
    Ok(Box::new(Attached { attachment, map, socket: socket.to_path_buf() }))
}

fn unattached(socket: &Path, error: ChannelError) -> Failure {
    let (why, path) = (format!("the agent at {}: {error}", socket.display()), shell::path(socket));
    let absent = |error: &io::Error| {
        matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
    };
    match &error {
        ChannelError::Io(error) if absent(error) => {
            let why = format!("no agent listens at {}: {error}", socket.display());
            let help = format!(
                "`tiebreak monitor agent --socket {path} --log LOG --key KEY --serial SERIAL` starts one"
            );
            Failure::new(Exit::Usage, why).help(help)
        }
        ChannelError::Refused(_) => {
            Failure::new(Exit::Usage, why).help("wait until that training ends, or name another chip's agent")
        }
        _ => {
            Failure::new(Exit::Undecided, why).help("start the agent again, and this training with --resume")
        }
    }
}

impl Snapshots for Attached {
    fn take(&mut self, step: u32, session: &mut Session) -> Result<Option<String>, StepError> {
        let mut known = None;
        let (before, held, begin) = (self.attachment.unanswered(), self.attachment.held(), Instant::now());
        let gone = |error: ChannelError, socket: &Path| {
            let why = format!(
                "the chip's agent: {error}; training stops before step {step} is written. Start the agent again, and go on with --resume"
            );
            RunError::Io { path: socket.to_path_buf(), source: io::Error::other(why) }
        };
        while let Some(request) = self.attachment.due().map_err(|error| gone(error, &self.socket))? {
            let digest = match known {
                Some(digest) => digest,
                None => shard_digest(session, &self.map)?,
            };
            known = Some(digest);
            let taken = self.attachment.answer(request, step, digest);
            taken.map_err(|error| gone(error, &self.socket))?;
        }
        let late = self.attachment.unanswered() - before;
        if late == 0 && self.attachment.held() > held && known.is_some() {
            let waited = begin.elapsed().as_secs();
            return Ok(Some(format!(
                "step {step}: this training waited {waited} s until its chip's collector had the snapshot"
            )));
        }
        Ok((late > 0).then(|| {
            format!(
                "warning: step {step}: {late} requests of the agent waited longer than its patience; its log says `unanswered` (raise the agent's --patience)"
            )
        }))
    }
}

/// The digest of the part of a session's state that a map names. Tensors are hashed one by one; the state is not copied.
fn shard_digest(session: &mut Session, map: &ShardMap) -> Result<Digest, EngineError> {
    let ShardMap::Slices(slices) = map else {
        let digests = state_digests(session)?;
        return Ok(state_root(session.program(), &digests));
    };
    let table = session.program().state();
    let (engine, state) = session.engine_and_state();
    let (mut digests, mut rest) = (Vec::with_capacity(slices.len()), &slices[..]);
    for (entry, tensor) in table.iter().zip(state) {
        let own = rest.iter().take_while(|slice| slice.tensor == entry.name).count();
        let (here, behind) = rest.split_at(own);
        if !here.is_empty() {
            engine
                .read(tensor, &mut |bytes| digests.extend(here.iter().map(|slice| slice.digest_in(bytes))))?;
        }
        rest = behind;
    }
    Ok(map.digest_of_slices(&digests))
}
