//! The line `help:` below an error: a command to type, or a thing to do, by the kind of the error.

use std::io;
use std::path::Path;

use clap::error::{ContextKind, ContextValue};

use tiebreak_engine::EngineError;
use tiebreak_record::commit::Malformed;
use tiebreak_run::run::{RunError, companions, shell};

/// The engines that this build has, as `--engine` takes them.
const BUILT: &[&str] = &[
    "cpu",
    "reference",
    #[cfg(feature = "gpu")]
    "wgpu",
    #[cfg(feature = "cuda")]
    "cuda",
];

/// A way out of an error of a run, its files or a job.
pub fn of_run(error: &RunError) -> Option<String> {
    if let Some(path) = error.path().filter(|path| tiebreak_remote::is_address(path)) {
        return of_address(error, path);
    }
    Some(match error {
        RunError::NoRun { folder } => {
            format!(
                "name the folder of a run; `tiebreak train JOB --out {}` makes one there",
                shell::path(folder)
            )
        }
        RunError::NoJob { path } => {
            format!("check the path, or begin with `tiebreak job new gpt --output {}`", shell::path(path))
        }
        RunError::Locked { folder, .. } => format!(
            "wait until that process ends, or stop it; `tiebreak audit {} --prefix` reads without the lock",
            shell::path(folder)
        ),
        RunError::Memory { needed, .. } => more_memory(*needed),
        RunError::Unsigned { path, .. } => format!(
            "leave --trainer-key out, or ask the trainer for `tiebreak sign {} --key FILE`",
            shell::path(path.parent().and_then(Path::parent).unwrap_or(Path::new("RUN")))
        ),
        RunError::OtherKey { .. } => {
            "ask the trainer for the public key; a run by another trainer stays another run".into()
        }
        RunError::Malformed { source, .. } => return of_malformed(source),
        RunError::Job(_) => {
            "`tiebreak job reference` lists every key with its type, default and example".into()
        }
        RunError::Io { path, source } if source.kind() == io::ErrorKind::NotFound => absent(path),
        RunError::Io { path, source } if source.kind() == io::ErrorKind::PermissionDenied => {
            format!("`ls -ld {}` shows who may read and write it", shell::path(path))
        }
        RunError::Io { source, .. } if source.kind() == io::ErrorKind::StorageFull => {
            "`df -h` shows how full each disk is; free some space, and run the same command again".into()
        }
        RunError::Io { .. } | RunError::Refused(_) => return None,
    })
}

/// A way out of an error of a run at an address.
fn of_address(error: &RunError, path: &Path) -> Option<String> {
    use io::ErrorKind;
    Some(match error {
        RunError::NoRun { .. } => "name the address of a run's folder, below which run.json is".into(),
        RunError::Malformed { source, .. } => return of_malformed(source),
        RunError::OtherKey { .. } => {
            "ask the trainer for the public key; a run by another trainer stays another run".into()
        }
        RunError::Io { source, .. } => match source.kind() {
            ErrorKind::Unsupported => "copy the run to a folder here, and name that folder".into(),
            ErrorKind::NotFound => format!("`curl -I {}` shows what the server has there", shell::path(path)),
            ErrorKind::PermissionDenied if is_hidden(path, source) => {
                "some servers answer so where there is no such file: give credentials that may read and list the folder, or copy the folder here, \
                 and name that"
                    .into()
            }
            ErrorKind::PermissionDenied => {
                "whoever publishes the run has to let everybody read its files, and run `tiebreak publish`".into()
            }
            ErrorKind::InvalidData => {
                "run the same command again; if the error stays, tell whoever publishes the run, or audit a copy here".into()
            }
            ErrorKind::HostUnreachable => "check the host's name in the address".into(),
            ErrorKind::TimedOut => {
                "check the network and the server, and run the same command again; `--report FILE --key KEY --shard 1/1` keeps what an audit \
                 has done"
                    .into()
            }
            _ => "copy the run to a folder here, and name that folder".into(),
        },
        _ => return None,
    })
}

/// True if a server refuses a file beside a model, which may not be there at all.
fn is_hidden(path: &Path, source: &io::Error) -> bool {
    let weights = |name| ["model.safetensors", "model.safetensors.index.json"].contains(&name);
    let name = path.file_name().and_then(|name| name.to_str());
    name.is_some_and(|name| companions::is_name(name) || weights(name))
        && source.to_string().contains("status 403")
}

/// A way out of an error of bytes that somebody else made.
pub fn of_malformed(error: &Malformed) -> Option<String> {
    match error {
        Malformed::OtherContract { found, .. } if found == "tiebreak-contract-1" => {
            Some("train again: contract 1 was a draft under which nothing was published".into())
        }
        Malformed::OtherContract { .. } => {
            Some("use the release of tiebreak that wrote it; `tiebreak --version` prints this one's".into())
        }
        _ => None,
    }
}

/// A way out of an error of an engine.
pub fn of_engine(error: &EngineError) -> Option<String> {
    Some(match error {
        EngineError::NoAdapter { .. } => {
            "`tiebreak adapters` lists what is here; `--engine cpu` needs no GPU".into()
        }
        EngineError::Unsupported { .. } | EngineError::OutOfMemory { .. } => {
            "`--engine cpu` computes the same bits in main memory; `tiebreak adapters` lists every engine here"
                .into()
        }
        EngineError::WrongResult { .. } => {
            "give another --adapter, or `--engine cpu`; `tiebreak adapters --test` tests every engine here".into()
        }
        EngineError::Outside(_) => {
            "free room there, or name a folder on another disk; if it gave back other bytes, that disk or this machine's memory is faulty".into()
        }
        EngineError::Kernel { .. } => {
            "training goes on behind its last checkpoint: mend the kernel, and start the same call again with it"
                .into()
        }
        EngineError::SelfTest { .. } => "`tiebreak adapters --test` shows which engines here are right".into(),
        EngineError::OutOfTime => "raise --max-time, or ask for fewer steps".into(),
        EngineError::DeviceLost { .. } | EngineError::Fault { .. } | EngineError::Stopped(_) => return None,
    })
}

/// The limit that would do.
pub fn more_memory(needed: u64) -> String {
    format!("raise --max-memory to {} (MiB), if the machine has it", needed.div_ceil(1 << 20))
}

/// The part of a path that is there.
pub fn absent(path: &Path) -> String {
    let here = path.ancestors().skip(1).find(|folder| folder.is_dir());
    let here = here.filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    format!("check the path; `ls {}` shows what is there", shell::path(here))
}

/// A way out of a command line that cannot be parsed, beside the words of the parser.
pub fn of_line(error: &clap::Error) -> Option<String> {
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.as_str()),
        _ => None,
    };
    let engine = text(ContextKind::InvalidArg)?.starts_with("--engine ");
    engine.then(|| engine_help(text(ContextKind::InvalidValue).unwrap_or_default(), BUILT))
}

/// A way out where no engine of this name is among those that were built.
fn engine_help(named: &str, built: &[&str]) -> String {
    let feature = match named {
        "wgpu" => "gpu",
        other => other,
    };
    match ["wgpu", "cuda"].contains(&named) && !built.contains(&named) {
        true => format!(
            "this build leaves the engine {named} out: `cargo install --path . --locked --features {feature}` has it"
        ),
        false => "`tiebreak adapters` lists the engines and GPUs here".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_that_is_not_compiled_in_is_told_from_one_that_does_not_exist() {
        let few = ["cpu", "reference"];
        assert!(engine_help("wgpu", &few).ends_with("--features gpu` has it"));
        assert!(engine_help("cuda", &few).ends_with("--features cuda` has it"));
        assert!(engine_help("tpu", &few).starts_with("`tiebreak adapters`"));
        assert!(engine_help("cuda", &["cpu", "cuda"]).starts_with("`tiebreak adapters`"));
    }

    #[test]
    fn a_path_is_shown_as_far_as_it_is_there() {
        let folder = std::env::temp_dir();
        let shown = absent(&folder.join("no such folder").join("file"));
        assert!(shown.contains(&format!("`ls {}`", shell::path(&folder))), "{shown}");
        assert!(absent(Path::new("no such file")).contains("`ls .`"));
    }
}
