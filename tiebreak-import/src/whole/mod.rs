//! Checks that a picture's file is whole. Decoders, as browsers want it, show as much as they can of a damaged file; these checks
//! find the damage, from the bytes alone.

mod bits;
mod jpeg;
mod png;

pub use jpeg::whole as jpeg;
pub use png::whole as png;

/// The most pixels of a picture.
pub const PIXELS_MAX: u64 = 1 << 28;

/// Takes `len` bytes off the front.
fn take<'a>(rest: &mut &'a [u8], len: usize) -> Result<&'a [u8], String> {
    rest.split_off(..len).ok_or_else(|| "it is cut short".into())
}

/// Takes a big-endian u16 off the front.
fn take_u16(rest: &mut &[u8]) -> Result<u16, String> {
    let bytes = take(rest, 2)?;
    Ok(u16::from_be_bytes([bytes[0], bytes[1]]))
}

/// Takes a big-endian u32 off the front.
fn take_u32(rest: &mut &[u8]) -> Result<u32, String> {
    Ok(u32::from(take_u16(rest)?) << 16 | u32::from(take_u16(rest)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const JPEG: [&[u8]; 7] = [
        include_bytes!("../../tests/pictures/baseline.jpg"),
        include_bytes!("../../tests/pictures/subsampled.jpg"),
        include_bytes!("../../tests/pictures/grey.jpg"),
        include_bytes!("../../tests/pictures/restarts.jpg"),
        include_bytes!("../../tests/pictures/progressive.jpg"),
        include_bytes!("../../tests/pictures/progressive-restarts.jpg"),
        include_bytes!("../../tests/pictures/inks.jpg"),
    ];
    const PNG: [&[u8]; 4] = [
        include_bytes!("../../tests/pictures/colours.png"),
        include_bytes!("../../tests/pictures/transparent.png"),
        include_bytes!("../../tests/pictures/palette.png"),
        include_bytes!("../../tests/pictures/interlaced.png"),
    ];

    /// The offset of the last scan's data.
    fn data(file: &[u8]) -> usize {
        let scan = file.windows(2).rposition(|bytes| bytes == b"\xff\xda").unwrap();
        scan + 2 + usize::from(file[scan + 3])
    }

    #[test]
    fn whole_files_are_taken() {
        for file in JPEG {
            assert_eq!(jpeg(file), Ok(()));
            // Cameras append previews and films, which no decoder reads.
            assert_eq!(jpeg(&[file, b"more"].concat()), Ok(()));
        }
        PNG.iter().for_each(|file| assert_eq!(png(file), Ok(())));
    }

    #[test]
    fn files_that_are_cut_anywhere_are_refused() {
        for file in JPEG {
            for len in 0..file.len() {
                assert!(jpeg(&file[..len]).is_err(), "{len}");
                // Files of tools that mend the end, and of downloads into preallocated space.
                assert!(
                    len < 2 || len >= file.len() - 2 || jpeg(&[&file[..len], b"\xff\xd9"].concat()).is_err(),
                    "{len}"
                );
                let zeros = vec![0; file.len() - len];
                assert!(jpeg(&[&file[..len], &zeros].concat()).is_err(), "{len}");
            }
        }
        for file in PNG {
            (0..file.len()).for_each(|len| assert!(png(&file[..len]).is_err(), "{len}"));
        }
    }

    #[test]
    fn data_that_are_missing_or_left_over_are_found() {
        for file in JPEG {
            let (begin, end) = (data(file), file.len() - 2);
            let more = [&file[..end], &[0x12, 0x34, 0x56], &file[end..]].concat();
            assert!(jpeg(&more).is_err());
            let without = |range: std::ops::Range<usize>| [&file[..range.start], &file[range.end..]].concat();
            assert!(jpeg(&without(begin..end)).is_err());
            assert!(jpeg(&without((begin + end) / 2..end)).is_err());
        }
        let restarts = JPEG[3];
        let marker =
            restarts.windows(2).rposition(|bytes| bytes[0] == 0xff && bytes[1] & 0xf8 == 0xd0).unwrap();
        for other in [&restarts[marker..marker + 1], b"\xff\xd9"] {
            let changed = [&restarts[..marker], other, &restarts[marker + 2..]].concat();
            assert!(jpeg(&changed).is_err());
        }
    }

    #[test]
    fn every_bit_of_a_png_counts() {
        for file in PNG {
            for at in 0..file.len() {
                let mut changed = file.to_vec();
                changed[at] ^= 1 << (at % 8);
                assert!(png(&changed).is_err(), "{at}");
            }
            assert!(png(&[file, b"\0"].concat()).unwrap_err().contains("1 bytes follow"));
        }
    }

    /// A PNG file of these compressed data, of 8 bits a pixel.
    fn with_data(data: &[u8]) -> Vec<u8> {
        with_depth(8, data)
    }

    fn with_depth(depth: u8, data: &[u8]) -> Vec<u8> {
        let chunk = |kind: &[u8; 4], contents: &[u8]| {
            let mut crc = flate2::Crc::new();
            [&kind[..], contents].iter().for_each(|part| crc.update(part));
            let len = contents.len() as u32;
            [&len.to_be_bytes(), &kind[..], contents, &crc.sum().to_be_bytes()].concat()
        };
        let header = [0, 0, 0, 2, 0, 0, 0, 3, depth, 0, 0, 0, 0];
        [b"\x89PNG\r\n\x1a\n", &chunk(b"IHDR", &header)[..], &chunk(b"IDAT", data), &chunk(b"IEND", b"")]
            .concat()
    }

    #[test]
    fn a_png_holds_as_many_pixels_as_it_says() {
        let packed = |len: usize| {
            let mut packer = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::fast());
            std::io::Write::write_all(&mut packer, &vec![0; len]).unwrap();
            packer.finish().unwrap()
        };
        assert_eq!(png(&with_data(&packed(9))), Ok(()));
        // A depth that no picture has would multiply the data to unpack.
        assert!(png(&with_depth(255, &packed(3 * 65))).unwrap_err().contains("its header has no meaning"));
        let full = packed(9);
        let cut = &full[..full.len() - 1];
        let mut other = full.clone();
        *other.last_mut().unwrap() ^= 1;
        for data in [
            &packed(8)[..],
            &packed(10),
            cut,
            &full[..full.len() - 4],
            &other,
            &[&full[..], b"x"].concat(),
            b"",
        ] {
            assert!(png(&with_data(data)).is_err(), "{data:?}");
        }
    }
}
