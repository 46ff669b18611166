//! Encryption of packs in the age format, <https://age-encryption.org/v1>: to recipients `age1...`, whose identity a box keeps.

use std::io::{BufRead, Chain, Cursor, Read, Write};
use std::iter;

use age::secrecy::ExposeSecret;
use age::stream::{StreamReader, StreamWriter};
use age::x25519;
use age::{DecryptError, Decryptor, EncryptError, Encryptor};

use super::error::{PackError, invalid};
use tiebreak_record::commit::{Malformed, beginning};

/// The most bytes of a sealed file's header: some 600 recipients.
pub const HEADER_MAX: usize = 1 << 16;
/// The most bytes of a file with an identity.
pub const IDENTITY_MAX: u64 = 1 << 16;
/// The first line of a sealed file.
const VERSION: &[u8] = b"age-encryption.org/v1\n";
/// The beginning of the header's last line.
const MAC: &[u8] = b"--- ";

/// A box's public key: whoever has it can seal a pack for the box.
#[derive(Clone)]
pub struct Recipient(x25519::Recipient);

impl Recipient {
    /// Reads a key `age1...`.
    ///
    /// # Errors
    /// If the text is no such key.
    pub fn from_text(text: &str) -> Result<Recipient, Malformed> {
        let parsed = text.trim().parse().map(Recipient);
        parsed.map_err(|why: &str| {
            let why = format!("{:?} is no key of age, which begins with age1: {why}", beginning(text));
            Malformed::invalid("recipient", why)
        })
    }

    /// The key's text.
    pub fn to_text(&self) -> String {
        self.0.to_string()
    }
}

/// A box's private key: whoever has it can open what is sealed for the box.
pub struct Identity(x25519::Identity);

impl Identity {
    /// A new key, from the system's randomness.
    pub fn generate() -> Identity {
        Identity(x25519::Identity::generate())
    }

    /// Reads a file with one identity `AGE-SECRET-KEY-1...`, as age's tools write it: empty lines and those that begin with `#`
    /// do not count.
    ///
    /// # Errors
    /// If the text has none, or several. No error quotes the text.
    pub fn from_text(text: &str) -> Result<Identity, Malformed> {
        let wrong = |why: String| Malformed::invalid("identity", why);
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        let lines: Vec<&str> = lines.collect();
        let [line] = lines[..] else {
            return Err(wrong(format!("one line with a key is wanted, and {} are there", lines.len())));
        };
        let parsed = line.parse().map(Identity);
        parsed.map_err(|why: &str| wrong(format!("its line is no AGE-SECRET-KEY-1 of age: {why}")))
    }

    /// The file's text, with the recipient in a comment.
    pub fn to_text(&self) -> String {
        format!("# public key: {}\n{}\n", self.recipient().to_text(), self.0.to_string().expose_secret())
    }

    /// The public key.
    pub fn recipient(&self) -> Recipient {
        Recipient(self.0.to_public())
    }
}

/// Encrypts what is written, until [`StreamWriter::finish`], which must be called.
///
/// # Errors
/// If there is no recipient, or the header cannot be written.
pub fn seal<W: Write>(recipients: &[Recipient], out: W) -> Result<StreamWriter<W>, PackError> {
    let all = recipients.iter().map(|recipient| &recipient.0 as &dyn age::Recipient);
    let encryptor = Encryptor::with_recipients(all).map_err(|error| match error {
        EncryptError::Io(error) => PackError::Io(error),
        error => invalid(error.to_string()),
    })?;
    encryptor.wrap_output(out).map_err(PackError::Io)
}

/// A sealed file whose header was read already.
pub type Rest<R> = Chain<Cursor<Vec<u8>>, R>;

/// Decrypts a sealed file as it is read. Bytes that were changed, and an end that is missing, are errors of the reader.
///
/// # Errors
/// If the file is not in the age format, is sealed for others, or cannot be read.
pub fn open<R: BufRead>(mut input: R, identity: &Identity) -> Result<StreamReader<Rest<R>>, PackError> {
    let header = header(&mut input)?;
    let opened = Decryptor::new_buffered(Cursor::new(header).chain(input))
        .and_then(|decryptor| decryptor.decrypt(iter::once(&identity.0 as &dyn age::Identity)));
    opened.map_err(|error| match error {
        DecryptError::NoMatchingKeys => PackError::NotForUs(identity.recipient().to_text()),
        DecryptError::Io(error) => error.into(),
        error => invalid(format!("its header is not one of age: {error}")),
    })
}

/// The kinds of the recipients of a sealed file, such as `X25519`, which are in the clear. Lines that age's tools add so that readers
/// stay open for other kinds (`...-grease`) do not count.
///
/// # Errors
/// If the file is not in the age format, or cannot be read.
pub fn recipients(mut input: impl BufRead) -> Result<Vec<String>, PackError> {
    let header = header(&mut input)?;
    let lines = header.split(|byte| *byte == b'\n').filter_map(|line| line.strip_prefix(b"-> "));
    let kind = |line: &[u8]| {
        let word = line.split(|byte| *byte == b' ').next().unwrap_or_default();
        beginning(&String::from_utf8_lossy(word))
    };
    Ok(lines.map(kind).filter(|kind| !kind.ends_with("-grease")).collect())
}

/// True if these are the first bytes of a file in the age format.
pub fn is_sealed(bytes: &[u8]) -> bool {
    bytes.starts_with(VERSION)
}

/// Reads the header, whose length only its end tells.
fn header(input: &mut impl BufRead) -> Result<Vec<u8>, PackError> {
    let mut header = Vec::new();
    loop {
        let begin = header.len();
        let left = (HEADER_MAX - begin) as u64;
        input.by_ref().take(left).read_until(b'\n', &mut header)?;
        let line = &header[begin..];
        if begin == 0 && line != VERSION {
            let found = line[..line.len().min(VERSION.len())].escape_ascii();
            return Err(invalid(format!(
                "it begins with \"{found}\", and what age encrypts with \"age-encryption.org/v1\""
            )));
        }
        if !line.ends_with(b"\n") {
            let why =
                format!("its header has no end within {} bytes; {HEADER_MAX} are the limit", header.len());
            return Err(invalid(why));
        }
        if line.starts_with(MAC) {
            return Ok(header);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sealed(recipients: &[&Identity], bytes: &[u8]) -> Vec<u8> {
        let recipients: Vec<Recipient> = recipients.iter().map(|identity| identity.recipient()).collect();
        let mut out = seal(&recipients, Vec::new()).unwrap();
        out.write_all(bytes).unwrap();
        out.finish().unwrap()
    }

    fn opened(bytes: &[u8], identity: &Identity) -> Result<Vec<u8>, PackError> {
        let mut plain = Vec::new();
        open(bytes, identity)?.read_to_end(&mut plain)?;
        Ok(plain)
    }

    #[test]
    fn only_its_boxes_open_a_pack_and_every_change_is_seen() {
        let [one, two, stranger] = [(); 3].map(|()| Identity::generate());
        let plain: Vec<u8> = (0..200_000u32).map(|i| (i % 251) as u8).collect();
        let bytes = sealed(&[&one, &two], &plain);
        assert!(is_sealed(&bytes));
        assert_eq!(recipients(&bytes[..]).unwrap(), ["X25519", "X25519"]);
        for identity in [&one, &two] {
            assert_eq!(opened(&bytes, identity).unwrap(), plain);
        }
        assert!(
            matches!(opened(&bytes, &stranger), Err(PackError::NotForUs(key)) if key.starts_with("age1"))
        );
        for at in [0, 30, 120, 300, 400, 70_000, bytes.len() - 1] {
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            assert!(opened(&changed, &one).is_err(), "byte {at}");
        }
        // A chunk of the stream has 64 KiB and 16 bytes: cut off between two of them, and anywhere else.
        let header = bytes.len() - 200_000 - 4 * 16;
        for end in [0, 10, header, header + 65_552, header + 2 * 65_552, bytes.len() - 1] {
            assert!(opened(&bytes[..end], &one).is_err(), "{end}");
        }
        assert!(opened(&[&bytes[..], b"x"].concat(), &one).is_err());
        assert!(seal(&[], Vec::new()).is_err());
    }

    #[test]
    fn a_header_without_end_is_not_kept() {
        let identity = Identity::generate();
        let endless = || iter::repeat_n(b'-', 1 << 20);
        for bytes in [
            VERSION.iter().copied().chain(endless()).collect::<Vec<u8>>(),
            VERSION.iter().copied().chain(b"-> x y\n".iter().copied().cycle().take(1 << 20)).collect(),
        ] {
            let why = open(&bytes[..], &identity).err().unwrap().to_string();
            assert!(why.contains("65536 are the limit"), "{why}");
        }
        let why = open(&b"-----BEGIN AGE ENCRYPTED FILE-----\n"[..], &identity).err().unwrap().to_string();
        assert!(why.contains("-----BEGIN AGE"), "{why}");
    }

    #[test]
    fn keys_are_texts_and_errors_quote_no_private_one() {
        let identity = Identity::generate();
        let text = identity.to_text();
        assert_eq!(Identity::from_text(&text).unwrap().recipient().to_text(), identity.recipient().to_text());
        let public = identity.recipient().to_text();
        assert_eq!(Recipient::from_text(&format!("{public}\n")).unwrap().to_text(), public);
        let secret = text.lines().last().unwrap();
        for wrong in
            ["", "# nothing\n", &format!("{secret}\n{secret}\n"), &secret[..40], &format!("{secret}Q")]
        {
            let why = Identity::from_text(wrong).err().unwrap().to_string();
            assert!(!why.contains("SECRET-KEY-1Q") && !why.contains(&secret[20..40]), "{why}");
        }
        for wrong in ["", "age1", &public[..60], secret, "ssh-ed25519 AAAA"] {
            assert!(Recipient::from_text(wrong).is_err(), "{wrong}");
        }
    }
}
