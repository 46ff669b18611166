//! Checks that a PNG file is whole: its chunks and their checksums, and that its compressed data are exactly the picture's.
//! Source: the PNG specification, third edition, sections 5, 7, 8 and 10.

use std::io::{self, Read};

use flate2::Crc;
use flate2::bufread::ZlibDecoder;

use super::{PIXELS_MAX, take, take_u32};

/// The first row and column, and the steps between them, of each pass of an interlaced picture: x, y, x, y.
const PASSES: [[u32; 4]; 7] =
    [[0, 0, 8, 8], [4, 0, 8, 8], [0, 4, 4, 8], [2, 0, 4, 4], [0, 2, 2, 4], [1, 0, 2, 2], [0, 1, 1, 2]];

/// Checks that a file holds a picture and nothing else.
///
/// # Errors
/// If something is missing, superfluous or does not match its checksum, in words.
pub fn whole(bytes: &[u8]) -> Result<(), String> {
    let mut rest = bytes.strip_prefix(b"\x89PNG\r\n\x1a\n").ok_or("it is no PNG file")?;
    let (mut header, mut data) = (None, Vec::new());
    loop {
        if rest.is_empty() {
            return Err("it is cut short: the end of the picture is missing".into());
        }
        let len = take_u32(&mut rest)? as usize;
        let chunk = take(&mut rest, len.saturating_add(4))?;
        let (kind, contents) = chunk.split_at(4);
        let mut crc = Crc::new();
        crc.update(chunk);
        if take_u32(&mut rest)? != crc.sum() {
            let name = String::from_utf8_lossy(kind).escape_debug().to_string();
            return Err(format!("the checksum of its {name} chunk is another: it is damaged"));
        }
        match kind {
            b"IHDR" => header = Some(contents),
            b"IDAT" => data.push(contents),
            b"IEND" => break,
            _ => {}
        }
    }
    if !rest.is_empty() {
        return Err(format!("{} bytes follow its end", rest.len()));
    }
    let wanted = raw_len(header.ok_or("it has no header")?)?;
    exact(&data.concat(), wanted)
}

/// The bytes of a picture before compression: each row of each pass with a byte before it.
fn raw_len(mut header: &[u8]) -> Result<u64, String> {
    let [columns, rows] = [take_u32(&mut header)?, take_u32(&mut header)?];
    let &[depth, colour, _, _, interlaced] = header else {
        return Err("its header has another length".into());
    };
    if ![1, 2, 4, 8, 16].contains(&depth) {
        return Err("its header has no meaning".into());
    }
    let channels = match colour {
        0 | 3 => 1,
        2 => 3,
        4 => 2,
        6 => 4,
        _ => return Err("its header has no meaning".into()),
    };
    if u64::from(rows) * u64::from(columns) > PIXELS_MAX {
        return Err(format!("it says that it has {rows} x {columns} pixels"));
    }
    let bits = u64::from(depth) * channels;
    let pass = |[x, y, across, down]: [u32; 4]| {
        let [columns, rows] =
            [columns.saturating_sub(x).div_ceil(across), rows.saturating_sub(y).div_ceil(down)];
        if columns == 0 { 0 } else { u64::from(rows) * (1 + (u64::from(columns) * bits).div_ceil(8)) }
    };
    Ok(if interlaced == 1 { PASSES.into_iter().map(pass).sum() } else { pass([0, 0, 1, 1]) })
}

/// Checks that compressed data hold so many bytes, with their checksum behind them and nothing else.
fn exact(data: &[u8], wanted: u64) -> Result<(), String> {
    let mut unpacked = ZlibDecoder::new(data);
    let read = io::copy(&mut Read::by_ref(&mut unpacked).take(wanted + 1), &mut io::sink());
    let read = read.map_err(|why| format!("its data do not unpack: {why}"))?;
    let left = data.len() as u64 - unpacked.total_in();
    match read {
        read if read < wanted => Err("its data end before its picture does".into()),
        read if read > wanted || left > 0 => Err("data are left over behind its picture".into()),
        _ => Ok(()),
    }
}
