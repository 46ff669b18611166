//! An inspector's command that reads samples: started without a shell, answered line by line, and killed when its time is up or this process ends.

use std::io::{Read, Write};
use std::path::{Path, absolute};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

/// The bytes of the longest answer with its line end.
const ANSWER: usize = b"yes\n".len();
/// The pause between two looks at whether the command has ended.
const LOOKED_EVERY: Duration = Duration::from_millis(5);

/// Runs a command in a folder, writes the input to it, and returns its answers, one for each sample: true for `yes`. The error
/// says why there are none, without any text of the input or of the answers.
pub fn answers(
    command: &[String],
    folder: &Path,
    input: Vec<u8>,
    samples: usize,
    time: Duration,
) -> Result<Vec<bool>, String> {
    let start = Instant::now();
    // First, so that there is no moment in which this process may end and nobody ends the command.
    let killer = Killer::start()?;
    let mut child = match spawn(command, folder, &killer) {
        Ok(child) => child,
        Err(why) => {
            killer.end(false);
            return Err(why);
        }
    };
    let done = talk(&mut child, input, samples, start, time);
    killer.end(done.is_err());
    if done.is_err() {
        // One that has ended cannot be killed, and needs not.
        let _ = child.kill();
        let _ = child.wait();
    }
    done
}

/// Starts the command in the killer's group.
#[cfg_attr(not(unix), expect(unused_variables, reason = "there are no groups"))]
fn spawn(command: &[String], folder: &Path, killer: &Killer) -> Result<Child, String> {
    let failed = |error: std::io::Error| format!("the command {:?} does not start: {error}", command[0]);
    let folder = absolute(folder).map_err(failed)?;
    // A program that is named with a folder is beside the rules; any other one is the system's to find.
    let beside = Path::new(&command[0]).components().count() > 1;
    let program = if beside { folder.join(&command[0]) } else { command[0].clone().into() };
    let mut started = Command::new(program);
    started.args(&command[1..]).current_dir(folder);
    started.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    #[cfg(unix)]
    std::os::unix::process::CommandExt::process_group(&mut started, killer.waits.id() as i32);
    started.spawn().map_err(failed)
}

/// Writes the input, reads the answers, and waits for the command's end.
fn talk(
    child: &mut Child,
    input: Vec<u8>,
    samples: usize,
    start: Instant,
    time: Duration,
) -> Result<Vec<bool>, String> {
    let (mut to, from) =
        (child.stdin.take().expect("it is a pipe"), child.stdout.take().expect("it is a pipe"));
    // A command need not read all of its input: it may know its answers.
    thread::spawn(move || to.write_all(&input));
    let (send, received) = channel();
    let most = samples * ANSWER;
    thread::spawn(move || {
        let mut answers = Vec::new();
        let read = from.take(most as u64 + 1).read_to_end(&mut answers);
        // Nobody waits for answers that come too late.
        let _ = send.send(read.map(|_| answers));
    });
    let late = || format!("the command did not end within {} s, and was killed", time.as_secs());
    let answers = received.recv_timeout(time).map_err(|_| late())?;
    let answers = answers.map_err(|error| format!("the command's answers cannot be read: {error}"))?;
    if answers.len() > most {
        return Err(format!("the command wrote more than the {most} bytes that {samples} answers have"));
    }
    loop {
        match child.try_wait() {
            Ok(Some(status)) if status.success() => return parse(&answers, samples),
            Ok(Some(status)) => return Err(format!("the command ended with {status}, and not with 0")),
            Ok(None) if start.elapsed() < time => thread::sleep(LOOKED_EVERY),
            Ok(None) => return Err(late()),
            Err(error) => return Err(format!("the command's end is not known: {error}")),
        }
    }
}

fn parse(answers: &[u8], samples: usize) -> Result<Vec<bool>, String> {
    let lines = answers.split_inclusive(|byte| *byte == b'\n');
    let answer = |(number, line): (usize, &[u8])| match line {
        b"yes\n" => Ok(true),
        b"no\n" => Ok(false),
        _ => Err(format!("answer {} of the command is neither `yes` nor `no` on a line", number + 1)),
    };
    let answers = lines.enumerate().map(answer).collect::<Result<Vec<bool>, String>>()?;
    if answers.len() != samples {
        return Err(format!("the command gave {} answers to {samples} samples", answers.len()));
    }
    Ok(answers)
}

/// A process that kills its group, which is that of the command and what it started, unless it is told before that all is done. The
/// pipe between closes whenever this process ends, so a signal that ends it ends the command too.
struct Killer {
    #[cfg(unix)]
    waits: Child,
}

impl Killer {
    /// Begins to wait for the end of this process. The system's shell reaches the whole group; nothing else here does without
    /// unsafe code.
    #[cfg(unix)]
    fn start() -> Result<Killer, String> {
        let mut started = Command::new("sh");
        started.args(["-c", "read -r done || kill -s KILL -- -$$"]);
        started.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        // A signal to this process's group has to leave it, or nobody kills the command.
        std::os::unix::process::CommandExt::process_group(&mut started, 0);
        let waits = started
            .spawn()
            .map_err(|error| format!("the shell that ends commands does not start: {error}"))?;
        Ok(Killer { waits })
    }

    #[cfg(not(unix))]
    fn start() -> Result<Killer, String> {
        Ok(Killer {})
    }

    /// Lets the command's group be, or kills it.
    fn end(self, kill: bool) {
        #[cfg(unix)]
        {
            let mut waits = self.waits;
            let pipe = waits.stdin.take();
            if let (false, Some(mut pipe)) = (kill, pipe) {
                // If the shell is gone, nothing is left to be told.
                let _ = pipe.write_all(b"done\n");
            }
            let _ = waits.wait();
        }
        #[cfg(not(unix))]
        let _ = kill;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_yes_or_no_one_a_line() {
        assert_eq!(parse(b"yes\nno\n", 2).unwrap(), [true, false]);
        for (answers, samples, says) in [
            (&b"yes\n"[..], 2, "1 answers to 2"),
            (b"yes\nno", 2, "answer 2"),
            (b"Yes\n", 1, "answer 1"),
            (b"yes\r\n", 1, "answer 1"),
            (b"\n", 1, "answer 1"),
            (b"", 1, "0 answers"),
        ] {
            assert!(parse(answers, samples).unwrap_err().contains(says), "{answers:?}");
        }
    }
}
