//! The canonical encoding: little-endian integers, lengths before contents. Decoding is bounded and strict: a
//! decoded value encodes to the same bytes.

use super::Malformed;
use super::digest::Digest;

/// Appends canonical values.
#[derive(Default)]
pub struct Encoder(pub Vec<u8>);

impl Encoder {
    /// One byte.
    pub fn u8(&mut self, x: u8) -> &mut Self {
        self.0.push(x);
        self
    }

    /// Four bytes, little-endian.
    pub fn u32(&mut self, x: u32) -> &mut Self {
        self.0.extend(x.to_le_bytes());
        self
    }

    /// Eight bytes, little-endian.
    pub fn u64(&mut self, x: u64) -> &mut Self {
        self.0.extend(x.to_le_bytes());
        self
    }

    /// The 32 bytes of a digest.
    pub fn digest(&mut self, digest: &Digest) -> &mut Self {
        self.0.extend(digest.0);
        self
    }

    /// A u32 length and the bytes.
    pub fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.u32(bytes.len() as u32);
        self.0.extend(bytes);
        self
    }

    /// A u8 presence flag, and the digest if there is one.
    pub fn option(&mut self, digest: Option<&Digest>) -> &mut Self {
        match digest {
            None => self.u8(0),
            Some(digest) => self.u8(1).digest(digest),
        }
    }

    /// A u32 count and the items.
    pub fn list<T>(&mut self, items: &[T], mut each: impl FnMut(&mut Encoder, &T)) -> &mut Self {
        self.u32(items.len() as u32);
        items.iter().for_each(|item| each(self, item));
        self
    }
}

/// Takes canonical values off a slice; `what` names the thing in errors.
pub struct Decoder<'a> {
    rest: &'a [u8],
    what: &'static str,
}

impl<'a> Decoder<'a> {
    /// A decoder of `bytes`, which are a `what`.
    pub fn new(what: &'static str, bytes: &'a [u8]) -> Decoder<'a> {
        Decoder { rest: bytes, what }
    }

    /// The next `len` bytes.
    ///
    /// # Errors
    /// If fewer bytes are left.
    pub fn take(&mut self, len: usize) -> Result<&'a [u8], Malformed> {
        let (head, tail) = self.rest.split_at_checked(len).ok_or(Malformed::Truncated { what: self.what })?;
        self.rest = tail;
        Ok(head)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        Ok(self.take(N)?.try_into().expect("take gives the length asked for"))
    }

    /// One byte.
    ///
    /// # Errors
    /// If too few bytes are left.
    pub fn u8(&mut self) -> Result<u8, Malformed> {
        Ok(self.array::<1>()?[0])
    }

    /// A little-endian u32.
    ///
    /// # Errors
    /// If too few bytes are left.
    pub fn u32(&mut self) -> Result<u32, Malformed> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    /// A little-endian u64.
    ///
    /// # Errors
    /// If too few bytes are left.
    pub fn u64(&mut self) -> Result<u64, Malformed> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// A digest of 32 bytes.
    ///
    /// # Errors
    /// If too few bytes are left.
    pub fn digest(&mut self) -> Result<Digest, Malformed> {
        Ok(Digest(self.array()?))
    }

    /// A u32 length of at most `max`, and the bytes.
    ///
    /// # Errors
    /// If the length is above `max`, or greater than the number of remaining bytes.
    pub fn bytes(&mut self, max: usize) -> Result<&'a [u8], Malformed> {
        let len = self.u32()? as usize;
        if len > max {
            return Err(Malformed::TooLarge { what: self.what, limit: max as u64 });
        }
        self.take(len)
    }

    /// UTF-8 text of at most `max` bytes.
    ///
    /// # Errors
    /// As [`Decoder::bytes`], or if the bytes are not UTF-8.
    pub fn text(&mut self, max: usize) -> Result<&'a str, Malformed> {
        let what = self.what;
        std::str::from_utf8(self.bytes(max)?).map_err(|error| {
            let valid = error.valid_up_to();
            Malformed::invalid(what, format!("a text is not UTF-8 from byte {valid} on"))
        })
    }

    /// A u8 presence flag, and the digest if it is 1.
    ///
    /// # Errors
    /// If the flag is neither 0 nor 1, or the bytes end too early.
    pub fn option(&mut self) -> Result<Option<Digest>, Malformed> {
        match self.u8()? {
            0 => Ok(None),
            1 => Ok(Some(self.digest()?)),
            flag => Err(Malformed::invalid(self.what, format!("presence flag {flag}"))),
        }
    }

    /// A list of at most `max` items, each of at least one byte, so that nothing is allocated for items that the
    /// bytes cannot hold.
    ///
    /// # Errors
    /// If there are more than `max` items, fewer than the count says, or an item is malformed.
    pub fn list<T>(
        &mut self,
        max: usize,
        mut each: impl FnMut(&mut Decoder<'a>) -> Result<T, Malformed>,
    ) -> Result<Vec<T>, Malformed> {
        let count = self.u32()? as usize;
        if count > max {
            return Err(Malformed::TooLarge { what: self.what, limit: max as u64 });
        }
        if count > self.rest.len() {
            return Err(Malformed::Truncated { what: self.what });
        }
        let mut items = Vec::new();
        for _ in 0..count {
            items.push(each(self)?);
        }
        Ok(items)
    }

    /// Checks that no bytes are left.
    ///
    /// # Errors
    /// If bytes are left.
    pub fn finish(self) -> Result<(), Malformed> {
        match self.rest.len() {
            0 => Ok(()),
            extra => Err(Malformed::Trailing { what: self.what, extra }),
        }
    }
}
