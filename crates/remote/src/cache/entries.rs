//! The folder of a cache: blocks of files, as many bytes as the bound allows. Several processes may share the folder.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use tiebreak_run::run::disk;

/// The bytes of a checksum, which stands before a block.
const CHECKSUM: usize = 32;
/// The share of the bound that a process writes between two looks at the whole folder: others may write meanwhile.
const UNSEEN_SHARE: u64 = 32;
/// The share of the bound that is free after old blocks went.
const FREED_SHARE: u64 = 16;
/// The most entries of the folder that are looked at.
const LISTED_MAX: usize = 1 << 22;
/// A process writes a block within this time, or was killed.
const WRITTEN_WITHIN: Duration = Duration::from_secs(600);
/// A block that was read so long ago is marked as read again.
const MARKED_AFTER: Duration = Duration::from_secs(30);

/// What the folder has under the name of a block.
pub(super) enum Kept {
    /// These bytes, with their own checksum. Nobody vouches for either.
    Block(Vec<u8>),
    Absent,
    /// Something else than a block of the right length with its checksum.
    Damaged,
}

/// The folder, with what this process knows about it.
pub(super) struct Entries {
    folder: PathBuf,
    /// The most bytes of all blocks.
    most: u64,
    size: Mutex<Size>,
}

/// The bytes of all blocks, as far as this process knows them.
#[derive(Default)]
struct Size {
    /// The bytes at the last look, and those that this process wrote since; `None` before the first look.
    known: Option<u64>,
    /// The bytes that this process wrote since the last look.
    unseen: u64,
}

/// The checksum of a block: it finds a damaged disk and a file that was cut, and no lie.
fn checksum(name: &str, bytes: &[u8]) -> [u8; CHECKSUM] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(name.as_bytes()).update(&[0]).update(bytes);
    *hasher.finalize().as_bytes()
}

/// True of the names of blocks: the digest of a file, the kind of the block, and its number. No other file in the folder is touched.
fn is_block(name: &str) -> bool {
    let Some((key, block)) = name.split_once('-') else { return false };
    let is_hex = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte));
    let number = block.strip_prefix(['l', 's']);
    key.len() == 64 && is_hex(key) && number.is_some_and(|number| number.len() == 10 && is_hex(number))
}

/// True of the names under which blocks are written.
fn is_partial(name: &str) -> bool {
    let inner = name.strip_prefix('.').and_then(|name| name.strip_suffix(".partial"));
    inner.and_then(|name| name.split_once('.')).is_some_and(|(block, _)| is_block(block))
}

impl Entries {
    /// The folder, which is made if it is not there: for this user alone.
    pub(super) fn at(folder: &Path, most: u64) -> io::Result<Entries> {
        if !folder.is_dir() {
            let mut builder = fs::DirBuilder::new();
            builder.recursive(true);
            #[cfg(unix)]
            std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
            builder.create(folder)?;
        }
        Ok(Entries { folder: folder.to_path_buf(), most, size: Mutex::default() })
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// The block of this name, if it has `length` bytes.
    pub(super) fn get(&self, name: &str, length: usize) -> Kept {
        let file = match opened(&self.folder.join(name)) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return Kept::Absent,
            Err(_) => return Kept::Damaged,
        };
        if !file.metadata().is_ok_and(|found| found.is_file() && found.len() == (CHECKSUM + length) as u64) {
            return Kept::Damaged;
        }
        let mut bytes = Vec::with_capacity(CHECKSUM + length);
        let read = (&file).take((CHECKSUM + length) as u64).read_to_end(&mut bytes);
        let Some((sum, block)) = bytes.split_first_chunk::<CHECKSUM>() else { return Kept::Damaged };
        if read.is_err() || block.len() != length || *sum != checksum(name, block) {
            return Kept::Damaged;
        }
        mark(&file);
        Kept::Block(bytes.split_off(CHECKSUM))
    }

    /// True if something has the name of a block.
    pub(super) fn has(&self, name: &str) -> bool {
        fs::symlink_metadata(self.folder.join(name)).is_ok()
    }

    /// Removes what has the name of a block. Another process may have done it.
    pub(super) fn remove(&self, name: &str) {
        let _ = fs::remove_file(self.folder.join(name));
    }

    /// Removes all blocks whose names begin so.
    pub(super) fn remove_all(&self, beginning: &str) {
        let Ok(entries) = fs::read_dir(&self.folder) else { return };
        for entry in entries.take(LISTED_MAX).flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if is_block(&name) && name.starts_with(beginning) {
                self.remove(&name);
            }
        }
    }

    /// Writes a block, whole or not at all, after the oldest ones made room for it. What has no room is not kept, nor a block whose name
    /// something else has.
    pub(super) fn put(&self, name: &str, block: &[u8]) -> io::Result<()> {
        let length = (CHECKSUM + block.len()) as u64;
        if length > self.most {
            return Ok(());
        }
        let mut size = self.size();
        let known = size.known.filter(|known| {
            size.unseen <= self.most / UNSEEN_SHARE && known.saturating_add(length) <= self.most
        });
        let known = match known {
            Some(known) => known,
            None => {
                size.unseen = 0;
                self.made_room(length)?
            }
        };
        size.known = Some(known.saturating_add(length));
        size.unseen = size.unseen.saturating_add(length);
        drop(size);
        let bytes = [&checksum(name, block)[..], block].concat();
        let path = self.folder.join(name);
        disk::replace_shared(&path, &bytes).or_else(|error| {
            // Another process removed the file, or no block has the block's name: that is no word about other blocks.
            let of_name = matches!(error.kind(), ErrorKind::NotFound | ErrorKind::AlreadyExists);
            let of_name = (of_name && self.folder.is_dir()) || path.is_dir();
            if of_name { Ok(()) } else { Err(error) }
        })
    }

    /// Looks at the whole folder, and removes the blocks that were not read for the longest time if `length` bytes have no room. Returns
    /// the bytes that are there.
    fn made_room(&self, length: u64) -> io::Result<u64> {
        let (mut all, now) = (Vec::new(), SystemTime::now());
        for entry in fs::read_dir(&self.folder)?.take(LISTED_MAX) {
            let name = entry?.file_name().to_string_lossy().into_owned();
            if !is_block(&name) && !is_partial(&name) {
                continue;
            }
            // A link counts as itself, and goes like a block.
            if let Ok(found) = fs::symlink_metadata(self.folder.join(&name))
                && !found.is_dir()
            {
                // A time that has yet to come says nothing: such a block would stay for ever.
                let time = found.modified().ok().filter(|time| is_near(*time, now) || *time <= now);
                all.push((time.unwrap_or(SystemTime::UNIX_EPOCH), found.len(), name));
            }
        }
        let mut bytes = all.iter().fold(0u64, |bytes, (_, length, _)| bytes.saturating_add(*length));
        if bytes.saturating_add(length) <= self.most {
            return Ok(bytes);
        }
        all.sort_unstable();
        let least = self.most - self.most / FREED_SHARE;
        let is_old = |time| now.duration_since(time).is_ok_and(|age| age >= WRITTEN_WITHIN);
        // Another process may be writing the partial ones.
        let goes = all.into_iter().filter(|(time, _, name)| is_block(name) || is_old(*time));
        for (_, freed, name) in goes {
            if bytes.saturating_add(length) <= least.max(length) {
                break;
            }
            self.remove(&name);
            bytes = bytes.saturating_sub(freed);
        }
        Ok(bytes)
    }

    fn size(&self) -> MutexGuard<'_, Size> {
        self.size.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Notes that a block was read now. The folder of somebody else may not take the note; then the block only goes sooner.
fn mark(file: &File) {
    let now = SystemTime::now();
    let before = file.metadata().and_then(|found| found.modified());
    if before.is_ok_and(|before| !is_near(before, now)) {
        let _ = file.set_modified(now);
    }
}

/// True if two times are so near that nothing depends on which is the later one: clocks of several machines differ.
fn is_near(time: SystemTime, now: SystemTime) -> bool {
    now.duration_since(time).unwrap_or_else(|later| later.duration()) < MARKED_AFTER
}

/// Opens what has the name of a block. A link is not followed, and nobody waits for a pipe's other end.
fn opened(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.read(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, libc::O_NOFOLLOW | libc::O_NONBLOCK);
    // FILE_FLAG_OPEN_REPARSE_POINT: a link itself, which is no plain file.
    #[cfg(windows)]
    std::os::windows::fs::OpenOptionsExt::custom_flags(&mut options, 0x0020_0000);
    options.open(path)
}
