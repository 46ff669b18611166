//! Checks that a JPEG file is whole: its scans are read to their ends, code by code, without making a pixel. Source: ITU-T T.81,
//! annexes B, F and G.

use super::bits::{Bits, Codes};
use super::{PIXELS_MAX, take, take_u16};

/// The most scans, as many as the decoder accepts.
const SCANS_MAX: usize = 100;

struct Component {
    id: u8,
    /// The number of blocks side by side, and one above the other, in each unit of an interleaved scan.
    sampling: [usize; 2],
    /// The number of blocks in a row, and of rows, in a scan of this component alone.
    own: [usize; 2],
    /// The number of blocks in a row of interleaved scans.
    padded: usize,
    /// For each block of a progressive file: the coefficients that are not zero, which later scans refine.
    nonzero: Vec<u64>,
    /// For each coefficient: the number of low bits that no scan has given so far.
    missing: [Option<u8>; 64],
}

#[derive(Default)]
struct Tables {
    /// The tables of the mean values, and those of the other coefficients.
    codes: [[Option<Codes>; 4]; 2],
    /// The number of units between two restart markers; 0 if there are none.
    restart: usize,
}

struct Frame {
    progressive: bool,
    /// The units of an interleaved scan: in a row, and rows.
    units: [usize; 2],
    components: Vec<Component>,
}

/// The data of a scan.
struct Scan {
    /// The components, each with the tables of its mean values and of the others.
    components: Vec<(usize, [usize; 2])>,
    /// The first and the last coefficient.
    band: [usize; 2],
    /// The lowest bit that earlier scans gave, or 0, and the lowest that this one gives.
    bits: [u8; 2],
}

/// Checks that a file holds a picture from its first code to its last.
///
/// # Errors
/// If data are missing, superfluous or without a meaning, in words.
pub fn whole(bytes: &[u8]) -> Result<(), String> {
    let mut rest = bytes.strip_prefix(b"\xff\xd8").ok_or("it is no JPEG file")?;
    let (mut tables, mut frame, mut scans) = (Tables::default(), None::<Frame>, 0);
    loop {
        let marker = marker(&mut rest)?;
        if marker == 0xd9 {
            return frame.ok_or("it holds no picture")?.complete();
        }
        let len = usize::from(take_u16(&mut rest)?);
        let segment = take(&mut rest, len.checked_sub(2).ok_or("a segment has no length")?)?;
        match marker {
            0xc0..=0xc2 if frame.is_none() => frame = Some(Frame::read(segment, marker == 0xc2)?),
            0xc4 => tables.read(segment)?,
            0xc0..=0xcf => return Err(format!("marker {marker:02x}: that compression is not decoded")),
            0xdd => tables.restart = take_u16(&mut &segment[..])?.into(),
            0xda => {
                let frame = frame.as_mut().ok_or("data come before the picture's size")?;
                scans += 1;
                if scans > SCANS_MAX {
                    return Err(format!("it has more than {SCANS_MAX} scans"));
                }
                let scan = Scan::read(segment, frame)?;
                rest = frame.scan(&scan, &tables, rest)?;
            }
            _ => {}
        }
    }
}

/// Takes a marker off the front, and the fill bytes before it.
fn marker(rest: &mut &[u8]) -> Result<u8, String> {
    let fill = rest.iter().take_while(|&&byte| byte == 0xff).count();
    match (fill, rest.get(fill)) {
        (_, None) => Err("it is cut short: the end of the picture is missing".into()),
        (1.., Some(&marker @ (0x02..=0xcf | 0xd9..=0xfe))) => {
            *rest = &rest[fill + 1..];
            Ok(marker)
        }
        _ => Err("other bytes stand where a marker is wanted".into()),
    }
}

impl Tables {
    fn read(&mut self, mut segment: &[u8]) -> Result<(), String> {
        while !segment.is_empty() {
            let place = take(&mut segment, 1)?[0];
            let tables = self.codes.get_mut(usize::from(place >> 4));
            let table = tables.and_then(|tables| tables.get_mut(usize::from(place & 15)));
            *table.ok_or("a table of codes has no place")? = Some(Codes::take(&mut segment)?);
        }
        Ok(())
    }

    fn get(&self, kind: usize, number: usize) -> Result<&Codes, String> {
        self.codes[kind][number].as_ref().ok_or_else(|| "a table of codes is missing".into())
    }
}

impl Frame {
    fn read(mut segment: &[u8], progressive: bool) -> Result<Frame, String> {
        let rest = &mut segment;
        take(rest, 1)?;
        let [rows, columns] = [take_u16(rest)?, take_u16(rest)?].map(usize::from);
        if rows == 0 || columns == 0 || (rows * columns) as u64 > PIXELS_MAX {
            return Err(format!("it says that it has {rows} x {columns} pixels"));
        }
        let count = take(rest, 1)?[0];
        let mut read = Vec::new();
        for _ in 0..count {
            let bytes = take(rest, 3)?;
            read.push((bytes[0], [bytes[1] >> 4, bytes[1] & 15].map(usize::from)));
        }
        let sampled = |axis: usize| read.iter().map(|(_, sampling)| sampling[axis]).max().unwrap_or(0);
        let most = [sampled(0), sampled(1)];
        if !(1..=4).contains(&count) || read.iter().any(|(_, s)| s.iter().any(|s| !(1..=4).contains(s))) {
            return Err("its components have no meaning".into());
        }
        let size = [columns, rows];
        let units = [0, 1].map(|axis| size[axis].div_ceil(8 * most[axis]));
        let component = |(id, sampling): (u8, [usize; 2])| {
            let own = [0, 1].map(|axis| (size[axis] * sampling[axis]).div_ceil(8 * most[axis]));
            let padded = units[0] * sampling[0];
            let blocks = if progressive { padded * units[1] * sampling[1] } else { 0 };
            Component { id, sampling, own, padded, nonzero: vec![0; blocks], missing: [None; 64] }
        };
        Ok(Frame { progressive, units, components: read.into_iter().map(component).collect() })
    }

    /// Reads a scan's data. Returns the bytes behind them.
    fn scan<'a>(&mut self, scan: &Scan, tables: &Tables, data: &'a [u8]) -> Result<&'a [u8], String> {
        let alone = scan.components.len() == 1;
        let [across, down] = if alone { self.components[scan.components[0].0].own } else { self.units };
        let (mut bits, mut runs, mut restarts) = (Bits::new(data), 0, 0u8);
        for unit in 0..across * down {
            if tables.restart > 0 && unit > 0 && unit % tables.restart == 0 {
                let behind = bits.end()?;
                let fill = behind.iter().take_while(|&&byte| byte == 0xff).count();
                if behind.get(fill) != Some(&(0xd0 + restarts % 8)) {
                    return Err("a restart marker is missing or out of order".into());
                }
                (bits, runs, restarts) = (Bits::new(&behind[fill + 1..]), 0, restarts.wrapping_add(1));
            }
            for &(number, chosen) in &scan.components {
                let component = &mut self.components[number];
                let [x, y] = [unit % across, unit / across];
                let [wide, high] = if alone { [1, 1] } else { component.sampling };
                for block in 0..wide * high {
                    let at = (y * high + block / wide) * component.padded + x * wide + block % wide;
                    if !self.progressive {
                        sequential(&mut bits, tables.get(0, chosen[0])?, tables.get(1, chosen[1])?)?;
                    } else if scan.band[0] == 0 {
                        mean(&mut bits, scan, tables, chosen[0])?;
                    } else {
                        let codes = tables.get(1, chosen[1])?;
                        let nonzero = component.nonzero.get_mut(at).ok_or("a scan has too many blocks")?;
                        match scan.bits[0] {
                            0 => first(&mut bits, codes, scan.band, &mut runs, nonzero)?,
                            _ => refine(&mut bits, codes, scan.band, &mut runs, nonzero)?,
                        }
                    }
                }
            }
        }
        for &(number, _) in &scan.components {
            self.components[number].missing[scan.band[0]..=scan.band[1]].fill(Some(scan.bits[1]));
        }
        bits.end()
    }

    /// Checks that no scan is missing before the end of the picture. Progressive files may leave out coefficients, which are then
    /// zero.
    fn complete(&self) -> Result<(), String> {
        let of = |component: &Component| {
            component.missing[0].is_some() && component.missing.iter().flatten().all(|&bits| bits == 0)
        };
        match self.components.iter().all(of) {
            true => Ok(()),
            false => Err("it ends before its last scan".into()),
        }
    }
}

impl Scan {
    fn read(mut segment: &[u8], frame: &Frame) -> Result<Scan, String> {
        let rest = &mut segment;
        let wrong = || "the head of a scan has no meaning".to_string();
        let mut components = Vec::new();
        for _ in 0..take(rest, 1)?[0] {
            let bytes = take(rest, 2)?;
            let number = frame.components.iter().position(|component| component.id == bytes[0]);
            let chosen = [bytes[1] >> 4, bytes[1] & 15].map(usize::from);
            let number = number.filter(|_| chosen.iter().all(|&table| table < 4)).ok_or_else(wrong)?;
            components.push((number, chosen));
        }
        let end = take(rest, 3)?;
        let band = [end[0], end[1]].map(usize::from);
        let bits = [end[2] >> 4, end[2] & 15];
        let fits = !frame.progressive
            || band[0] <= band[1]
                && band[1] < 64
                && (band[0] > 0 || band[1] == 0)
                && (band[0] == 0 || components.len() == 1);
        if components.is_empty() || components.len() > 4 || !fits {
            return Err(wrong());
        }
        let (band, bits) = if frame.progressive { (band, bits) } else { ([0, 63], [0, 0]) };
        Ok(Scan { components, band, bits })
    }
}

/// A block of a sequential file.
fn sequential(bits: &mut Bits, mean: &Codes, others: &Codes) -> Result<(), String> {
    value(bits, mean)?;
    let mut at = 1;
    while at < 64 {
        let symbol = bits.symbol(others)?;
        match (usize::from(symbol >> 4), u32::from(symbol & 15)) {
            (15, 0) => at += 16,
            (_, 0) => break,
            (zeros, len) => {
                at = place(at + zeros, 63)? + 1;
                bits.take(len)?;
            }
        }
    }
    Ok(())
}

/// The difference of a block's mean value.
fn value(bits: &mut Bits, codes: &Codes) -> Result<(), String> {
    match bits.symbol(codes)? {
        len @ 0..=15 => bits.take(len.into()).map(drop),
        _ => Err("a code in its data has no meaning".into()),
    }
}

/// A block's mean value, or one more bit of it.
fn mean(bits: &mut Bits, scan: &Scan, tables: &Tables, chosen: usize) -> Result<(), String> {
    if scan.bits[0] > 0 { bits.take(1).map(drop) } else { value(bits, tables.get(0, chosen)?) }
}

/// The index of a coefficient, if the scan has it.
fn place(at: usize, last: usize) -> Result<usize, String> {
    if at <= last { Ok(at) } else { Err("a block of its data has too many values".into()) }
}

/// The first bits of a block's coefficients.
fn first(
    bits: &mut Bits,
    codes: &Codes,
    [first, last]: [usize; 2],
    runs: &mut u32,
    nonzero: &mut u64,
) -> Result<(), String> {
    if *runs > 0 {
        *runs -= 1;
        return Ok(());
    }
    let mut at = first;
    while at <= last {
        let symbol = bits.symbol(codes)?;
        match (symbol >> 4, u32::from(symbol & 15)) {
            (15, 0) => at += 16,
            (len, 0) => {
                *runs = (1 << len) - 1 + bits.take(len.into())?;
                break;
            }
            (zeros, len) => {
                at = place(at + usize::from(zeros), last)?;
                bits.take(len)?;
                *nonzero |= 1 << at;
                at += 1;
            }
        }
    }
    Ok(())
}

/// One more bit of those coefficients of a block that are not zero, and the coefficients that become nonzero.
fn refine(
    bits: &mut Bits,
    codes: &Codes,
    [first, last]: [usize; 2],
    runs: &mut u32,
    nonzero: &mut u64,
) -> Result<(), String> {
    let mut at = first;
    while *runs == 0 && at <= last {
        let symbol = bits.symbol(codes)?;
        let (mut zeros, is_new) = match (symbol >> 4, symbol & 15) {
            (15, 0) => (15, false),
            (len, 0) => {
                *runs = (1 << len) + bits.take(len.into())?;
                break;
            }
            (zeros, 1) => (zeros, true),
            _ => return Err("a code in its data has no meaning".into()),
        };
        if is_new {
            bits.take(1)?;
        }
        while at <= last {
            if *nonzero >> at & 1 == 1 {
                bits.take(1)?;
            } else if zeros == 0 {
                break;
            } else {
                zeros -= 1;
            }
            at += 1;
        }
        if is_new {
            *nonzero |= 1 << place(at, last)?;
        }
        at += 1;
    }
    if *runs > 0 {
        let known = (first..=last).skip(at - first).filter(|&at| *nonzero >> at & 1 == 1).count();
        for _ in 0..known {
            bits.take(1)?;
        }
        *runs -= 1;
    }
    Ok(())
}
