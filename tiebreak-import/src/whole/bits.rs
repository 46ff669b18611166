//! The bits of a JPEG's entropy-coded segments, and the Huffman codes in them. Source: ITU-T T.81, annexes B, C and F.

use super::take;

/// The number of bits by which a code is looked up at once.
const LOOK: u32 = 9;
/// The longest code.
const CODE_MAX: usize = 16;
const RUNS_OUT: &str = "its data end before its picture does";

/// The bits of a segment, up to the marker that ends it.
pub struct Bits<'a> {
    rest: &'a [u8],
    /// Bits that were read and not taken: the lowest `count`.
    read: u64,
    count: u32,
}

impl<'a> Bits<'a> {
    /// The segment that begins here.
    pub fn new(rest: &'a [u8]) -> Bits<'a> {
        Bits { rest, read: 0, count: 0 }
    }

    /// Reads ahead, up to the next marker or until no whole byte fits.
    fn fill(&mut self) {
        while self.count <= 48 {
            let byte = match self.rest {
                // Fill bytes may come before a stuffed zero too, as libjpeg reads them.
                [0xff, after @ ..] => {
                    let fill = after.iter().take_while(|&&byte| byte == 0xff).count();
                    let Some(0) = after.get(fill) else { return };
                    self.rest = &after[fill + 1..];
                    0xff
                }
                [byte, after @ ..] => {
                    self.rest = after;
                    *byte
                }
                [] => return,
            };
            self.read = self.read << 8 | u64::from(byte);
            self.count += 8;
        }
    }

    /// The next `count` bits, 16 at most.
    pub fn take(&mut self, count: u32) -> Result<u32, String> {
        if self.count < count {
            self.fill();
        }
        self.count = self.count.checked_sub(count).ok_or(RUNS_OUT)?;
        Ok((self.read >> self.count) as u32 & ((1 << count) - 1))
    }

    /// The symbol of the next code.
    pub fn symbol(&mut self, codes: &Codes) -> Result<u8, String> {
        if self.count < CODE_MAX as u32 {
            self.fill();
        }
        // Behind the last bit the lookup sees zeros, which cannot be taken.
        let ahead = match self.count.checked_sub(CODE_MAX as u32) {
            Some(behind) => self.read >> behind,
            None => self.read << (CODE_MAX as u32 - self.count),
        } as usize
            & 0xffff;
        let (symbol, len) = codes.look(ahead).ok_or("a code in its data has no meaning")?;
        self.count = self.count.checked_sub(len).ok_or(RUNS_OUT)?;
        Ok(symbol)
    }

    /// The bytes behind the segment, from its marker on.
    ///
    /// # Errors
    /// If more than the padding of the last byte is left before the marker.
    pub fn end(mut self) -> Result<&'a [u8], String> {
        self.fill();
        let left = self.count / 8;
        match self.rest {
            [] => Err("it is cut short: no end of the picture follows its data".into()),
            [0xff, ..] if left == 0 => Ok(self.rest),
            _ => Err("data are left over before a marker: some before them are damaged".into()),
        }
    }
}

/// A Huffman table.
pub struct Codes {
    /// For the first bits: the symbol and the length of the code that they begin with; length 0 if the code is longer.
    short: Vec<(u8, u8)>,
    /// For each length: the first code behind the last one, its bits followed by zeros up to 16, and the offset from a code to
    /// its symbol.
    ends: [(u32, i32); CODE_MAX + 1],
    symbols: Vec<u8>,
}

impl Codes {
    /// Takes a table off a DHT segment: the number of codes of each length, then their symbols.
    pub fn take(rest: &mut &[u8]) -> Result<Codes, String> {
        let counts = take(rest, CODE_MAX)?;
        let symbols = take(rest, counts.iter().map(|&count| usize::from(count)).sum())?.to_vec();
        let mut codes =
            Codes { short: vec![(0, 0); 1 << LOOK], ends: [(0, 0); CODE_MAX + 1], symbols: Vec::new() };
        let (mut code, mut first) = (0u32, 0usize);
        for (len, &count) in (1..).zip(counts) {
            code <<= 1;
            let end = code + u32::from(count);
            if end > 1 << len {
                return Err("a table of codes has more of a length than there are".into());
            }
            codes.ends[len] = (end << (CODE_MAX - len), first as i32 - code as i32);
            for (code, &symbol) in (code..end).zip(&symbols[first..]) {
                if let Some(behind) = LOOK.checked_sub(len as u32) {
                    let at = (code << behind) as usize;
                    codes.short[at..at + (1 << behind)].fill((symbol, len as u8));
                }
            }
            (code, first) = (end, first + usize::from(count));
        }
        Ok(Codes { symbols, ..codes })
    }

    /// The symbol and the length of the code at the front of 16 bits.
    fn look(&self, ahead: usize) -> Option<(u8, u32)> {
        let (symbol, len) = self.short[ahead >> (CODE_MAX as u32 - LOOK)];
        if len > 0 {
            return Some((symbol, len.into()));
        }
        let longer = LOOK as usize + 1..=CODE_MAX;
        longer.into_iter().find(|&len| (ahead as u32) < self.ends[len].0).and_then(|len| {
            let code = (ahead >> (CODE_MAX - len)) as i32;
            Some((*self.symbols.get((code + self.ends[len].1) as usize)?, len as u32))
        })
    }
}
