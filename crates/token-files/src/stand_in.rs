//! Stand-ins for files that are elsewhere: long texts, which no file of numbers begins with by chance.

/// A text in place of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StandIn {
    /// A pointer of Git LFS. Source: docs/spec.md of git-lfs.
    LfsPointer,
    /// A pointer of git-annex. Source: its page on pointer files.
    AnnexPointer,
    /// A page of HTML, as a server sends.
    Page,
}

impl StandIn {
    /// The stand-in that has these first bytes, if they are one's.
    pub fn of(start: &[u8]) -> Option<StandIn> {
        let text = start.strip_prefix(b"\xef\xbb\xbf").unwrap_or(start).trim_ascii_start();
        let begins =
            |mark: &[u8]| text.get(..mark.len()).is_some_and(|start| start.eq_ignore_ascii_case(mark));
        if begins(b"version https://git-lfs") {
            Some(StandIn::LfsPointer)
        } else if begins(b"/annex/objects/") || begins(b".git/annex/objects/") {
            Some(StandIn::AnnexPointer)
        } else if begins(b"<!doctype html") || begins(b"<html") {
            Some(StandIn::Page)
        } else {
            None
        }
    }

    /// The stand-in's name.
    pub fn name(self) -> &'static str {
        match self {
            StandIn::LfsPointer => "a pointer of Git LFS, not the file itself",
            StandIn::AnnexPointer => "a pointer of git-annex, not the file itself",
            StandIn::Page => "a web page (HTML), not the file itself",
        }
    }

    /// The advice for getting the file.
    pub fn advice(self) -> &'static str {
        match self {
            StandIn::LfsPointer => {
                "run `git lfs pull` in the folder that it was cloned into, or download the file itself"
            }
            StandIn::AnnexPointer => "run `git annex get` on it",
            StandIn::Page => {
                "download the file again: the link led to a page about it, to a login or to an error"
            }
        }
    }
}
