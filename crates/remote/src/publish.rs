//! A run's files, brought to where others read them: each file before whatever covers it, and no newer file replaced by an older one.

use std::io::{self, ErrorKind};
use std::path::PathBuf;

use tiebreak_run::run::dir::Run;
use tiebreak_run::run::index::{INDEX_MAX, Index};
use tiebreak_run::run::{RunError, names};

use super::seen::GROWING;
use super::target::{Found, Put, Source, Target};

/// The times that a file is looked at again after somebody else wrote it.
const LOOKS: usize = 5;
/// The most bytes of a head that is compared.
const HEAD_MAX: u64 = 1 << 20;
/// The beginnings of files that nobody publishes, whatever their names are.
const SECRETS: [&[u8]; 2] = [b"PRIVATE+KEY+", b"SALT+KEY+"];

/// The files that a call brought, and those that were there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// The number of files that were sent.
    pub sent: u64,
    /// Their bytes together.
    pub sent_bytes: u64,
    /// The number of files that were there already.
    pub there: u64,
    /// The number of files in the index.
    pub files: u64,
    /// The bytes of all of them.
    pub bytes: u64,
    /// The records that the newest head covers; none without a head.
    pub head: Option<u64>,
}

/// What is to be done about a file that is there.
enum Look {
    /// Nothing: the file that is there has so many bytes.
    Same(u64),
    /// It is brought over the one that is there, or anew.
    Put(Option<Found>),
}

/// Publishes the files that a run has now. `tell` hears the number of files that are done, and of all.
///
/// # Errors
/// If the run has files that nobody publishes, another run or a newer state of it is there, or either side fails.
pub fn publish(run: &Run, target: &dyn Target, tell: &mut dyn FnMut(u64, u64)) -> Result<Done, RunError> {
    let _held = target.hold().map_err(failed(target, names::LOCK))?;
    let listed = index(run)?;
    refuse_secrets(run, &listed)?;
    let there = published(target)?;
    let newest = |index: &Index| index.list(names::HEADS).iter().filter_map(|name| name.parse().ok()).max();
    let (head, head_there): (Option<u64>, Option<u64>) =
        (newest(&listed), there.as_ref().and_then(|(index, _)| newest(index)));
    let order = ordered(&listed);
    if head_there > head {
        if let Some((length, name)) = order.first() {
            let file = Source { store: &*run.store, name, length: *length, text: None };
            // Another run's head says nothing about this one.
            if let Err(Looked::Failed(error)) = look(target, &file) {
                return Err(error);
            }
        }
        return Err(stale(target, head_there, head));
    }
    let mut done = Done { head, ..Done::default() };
    let mut kept = Vec::new();
    for (number, (length, name)) in order.iter().enumerate() {
        tell(number as u64, order.len() as u64);
        let file = Source { store: &*run.store, name, length: *length, text: None };
        if let Some(length) = bring(target, &file, &mut done)? {
            kept.push((name.clone(), length));
        }
        if number == 0 {
            check_conditions(target, &file)?;
        }
    }
    let index = Index::of_files(kept).map_err(|why| RunError::invalid(&run.layout.root, why.to_string()))?;
    let (files, bytes) = index.size();
    (done.files, done.bytes) = (files as u64, bytes);
    match there {
        Some((there, _)) if there.text() == index.text() => {}
        there => bring_index(run, target, &index, there.map(|(_, found)| found), &mut done)?,
    }
    tell(order.len() as u64, order.len() as u64);
    Ok(done)
}

/// The error about a file of the target.
fn failed<'a>(target: &'a dyn Target, name: &'a str) -> impl FnOnce(io::Error) -> RunError + 'a {
    move |error| RunError::io(&PathBuf::from(format!("{}/{name}", target.place())))(error)
}

fn refused<T>(target: &dyn Target, name: &str, why: &str) -> Result<T, RunError> {
    Err(RunError::Refused(format!("{}/{name}: {why}", target.place())))
}

fn stale(target: &dyn Target, there: Option<u64>, here: Option<u64>) -> RunError {
    let records = |head: Option<u64>| head.map_or("no records".to_string(), |head| format!("{head} records"));
    RunError::Refused(format!(
        "{}: a newer state of the run is there: its head covers {}, and the newest head here {}: publish from the folder where \
         the run is trained",
        target.place(),
        records(there),
        records(here)
    ))
}

/// The files that everybody may have, as they are now.
fn index(run: &Run) -> Result<Index, RunError> {
    let index = Index::of(&*run.store, |top| run.may_publish(top));
    index.map_err(RunError::io(&run.layout.root))
}

/// Refuses files that are no run's, such as keys, and files with the contents of a key.
fn refuse_secrets(run: &Run, index: &Index) -> Result<(), RunError> {
    let hidden = |name: &str| name.rsplit('/').next().is_some_and(|last| last.starts_with('.'));
    let foreign = run.unexpected_files()?.into_iter().find(|name| !hidden(name) && index.has(name));
    if let Some(name) = foreign {
        let path = run.layout.root.join(&name).display().to_string();
        return Err(RunError::Refused(format!(
            "{path} is no file of a run: move it elsewhere, then publish"
        )));
    }
    for (length, name) in index.files() {
        let most = SECRETS.iter().map(|secret| secret.len() as u64).max().unwrap_or_default();
        let begin = match run.store.read(name, 0..length.min(most)) {
            Err(error) if error.kind() == ErrorKind::NotFound => continue, // a trainer removed it meanwhile
            begin => begin.map_err(RunError::io(&run.layout.root.join(name)))?,
        };
        if SECRETS.iter().any(|secret| begin.starts_with(secret)) {
            let path = run.layout.root.join(name).display().to_string();
            return Err(RunError::Refused(format!(
                "{path} holds a secret key: move it elsewhere, then publish"
            )));
        }
    }
    Ok(())
}

/// The index that is there.
fn published(target: &dyn Target) -> Result<Option<(Index, Found)>, RunError> {
    let Some((bytes, found)) = target.bytes(names::INDEX, INDEX_MAX).map_err(failed(target, names::INDEX))?
    else {
        return Ok(None);
    };
    let index = String::from_utf8(bytes).ok().and_then(|text| Index::from_text(text).ok());
    match index {
        Some(index) => Ok(Some((index, found))),
        None => refused(target, names::INDEX, "it is no index of a run: name another place"),
    }
}

/// The files in the order in which they are brought: first the one that names the run, last the heads.
fn ordered(index: &Index) -> Vec<(u64, String)> {
    let rank = |name: &str| match name {
        names::RUN_JSON | names::RECORDING => 0,
        name if name.starts_with("heads/") => 3,
        // Behind the files that their records commit to.
        name if GROWING.contains(&name) => 2,
        _ => 1,
    };
    let mut files: Vec<(u64, String)> =
        index.files().map(|(length, name)| (length, name.to_string())).collect();
    files.sort_by(|(_, a), (_, b)| (rank(a), a).cmp(&(rank(b), b)));
    files
}

/// Brings a file, and returns its length there; none if the run has it no longer.
fn bring(target: &dyn Target, file: &Source, done: &mut Done) -> Result<Option<u64>, RunError> {
    for _ in 0..LOOKS {
        let over = match look(target, file) {
            Err(Looked::Gone) => return Ok(None),
            Err(Looked::Failed(error)) => return Err(error),
            Ok(Look::Same(length)) => {
                done.there += 1;
                return Ok(Some(length));
            }
            Ok(Look::Put(over)) => over,
        };
        match target.put(file, over.as_ref()) {
            Ok(Put::Done) => {
                done.sent += 1;
                done.sent_bytes += file.length;
                return Ok(Some(file.length));
            }
            Ok(Put::Changed) => {}
            // The trainer removed it meanwhile.
            Err(error) if error.kind() == ErrorKind::NotFound && file.store.length(file.name).is_err() => {
                return Ok(None);
            }
            Err(error) => return Err(failed(target, file.name)(error)),
        }
    }
    refused(target, file.name, "others write it at this time: publish again")
}

/// The reasons why a look ends a file's turn.
enum Looked {
    Gone,
    Failed(RunError),
}

/// Compares a file with the one that is there.
fn look(target: &dyn Target, file: &Source) -> Result<Look, Looked> {
    let Some(found) = target.found(file.name).map_err(failed(target, file.name)).map_err(Looked::Failed)?
    else {
        return Ok(Look::Put(None));
    };
    let here = |error: io::Error| match error.kind() {
        ErrorKind::NotFound => Looked::Gone,
        _ => Looked::Failed(RunError::io(&PathBuf::from(file.store.place()).join(file.name))(error)),
    };
    let grows = GROWING.contains(&file.name);
    let wrong = |why: &str| Err(Looked::Failed(refused::<()>(target, file.name, why).unwrap_err()));
    if file.name.starts_with("heads/") {
        return look_at_head(target, file, found, here);
    }
    if found.length == file.length && same(target, file, &found, here)? {
        return Ok(Look::Same(found.length));
    }
    match file.name {
        _ if grows && found.length > file.length => wrong(
            "a newer state of the file is there, with more bytes: publish from the folder where the run is trained",
        ),
        _ if grows => Ok(Look::Put(Some(found))),
        names::RUN_JSON | names::RECORDING => wrong("another run is published there: name another place"),
        _ => wrong("another file is there: name another place, or remove the file there"),
    }
}

/// Compares heads: signatures of witnesses come behind those that are there, and nothing else of a head changes.
fn look_at_head(
    target: &dyn Target,
    file: &Source,
    found: Found,
    here: impl Fn(io::Error) -> Looked,
) -> Result<Look, Looked> {
    if found.length == file.length && same(target, file, &found, &here)? {
        return Ok(Look::Same(found.length));
    }
    let ours = file.read(0..file.length.min(HEAD_MAX)).map_err(here)?;
    let read =
        target.bytes(file.name, HEAD_MAX).map_err(failed(target, file.name)).map_err(Looked::Failed)?;
    match read {
        None => Ok(Look::Put(None)),
        Some((theirs, found)) if ours.starts_with(&theirs) => Ok(Look::Put(Some(found))),
        Some((theirs, found)) if theirs.starts_with(&ours) => Ok(Look::Same(found.length)),
        Some((theirs, _)) => {
            let why = format!(
                "another head is there, of {} bytes, where {} are here: somebody shows two histories of the run, or another run",
                theirs.len(),
                ours.len()
            );
            Err(Looked::Failed(refused::<()>(target, file.name, &why).unwrap_err()))
        }
    }
}

/// True if a file of the same length has the same bytes: by the digest that its publisher left, else by the bytes themselves.
fn same(
    target: &dyn Target,
    file: &Source,
    found: &Found,
    here: impl Fn(io::Error) -> Looked,
) -> Result<bool, Looked> {
    if let Some(digest) = &found.digest {
        return Ok(file.digest(file.length).map_err(here)? == *digest);
    }
    let theirs =
        target.digest(file.name, found).map_err(failed(target, file.name)).map_err(Looked::Failed)?;
    Ok(theirs == Some(file.digest(file.length).map_err(here)?))
}

/// Refuses a store that writes whatever the condition: two publishers could replace each other's files.
fn check_conditions(target: &dyn Target, file: &Source) -> Result<(), RunError> {
    let other =
        Found { length: file.length + 1, tag: Some("\"0\"".into()), version: Some("1".into()), digest: None };
    for over in [None, Some(&other)] {
        // The bytes are those that are there, so a store that writes them changes nothing.
        if target.put(file, over).map_err(failed(target, file.name))? == Put::Done {
            let why = "the store ignores conditions of writes (If-None-Match, If-Match), so two publishers could replace each \
                       other's files: publish to another store";
            return refused(target, file.name, why);
        }
    }
    Ok(())
}

/// Brings the index, over the one that was there at the beginning.
fn bring_index(
    run: &Run,
    target: &dyn Target,
    index: &Index,
    over: Option<Found>,
    done: &mut Done,
) -> Result<(), RunError> {
    let text = index.text().as_bytes();
    let length = text.len() as u64;
    let file = Source { store: &*run.store, name: names::INDEX, length, text: Some(text) };
    match target.put(&file, over.as_ref()).map_err(failed(target, names::INDEX))? {
        Put::Done => {
            done.sent += 1;
            done.sent_bytes += length;
            Ok(())
        }
        Put::Changed => refused(target, names::INDEX, "somebody else published meanwhile: publish again"),
    }
}
