//! Random crops and flips of images as they are drawn. Contract: `docs/ARITHMETIC.md`, section 6.

use super::sampling::Place;
use crate::spec::Augment;
use tiebreak_contract::arith::philox::philox4x32_10;

/// The last counter word of the blocks that move images, which no other use of the generator has.
const MOVES: u32 = 0xffff_fffb;

/// The move of the image at one place of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Move {
    /// Rows by which the image moves down and columns by which it moves right, before it is mirrored; negative numbers move it
    /// up and left.
    by: [i64; 2],
    /// True if left and right are exchanged.
    mirrored: bool,
}

impl Move {
    /// The move that the run's Philox key gives at a place.
    pub(crate) fn of(augment: Augment, key: [u32; 2], at: Place) -> Move {
        let words = philox4x32_10(key, [at.step, at.place, 0, MOVES]);
        // An offset into the padded image, 0 to 2 * crop.
        let offset = |word: u32| (u64::from(word) * u64::from(2 * augment.crop + 1)) >> 32;
        let by = |word| i64::from(augment.crop) - offset(word) as i64;
        Move { by: [by(words[0]), by(words[1])], mirrored: augment.flip && words[2] >> 31 == 1 }
    }

    /// The words of an image after the move: planes of `rows` x `columns`, in row-major order. Pixels from outside of the image
    /// are 0.
    pub(crate) fn image(self, words: &[u32], planes: [usize; 2]) -> Vec<u32> {
        (0..words.len()).map(|place| self.source(place, planes).map_or(0, |from| words[from])).collect()
    }

    /// The index of the word that moves to `place`; `None` if it comes from outside of the image.
    pub(crate) fn source(self, place: usize, [rows, columns]: [usize; 2]) -> Option<usize> {
        let from = |place: usize, by: i64, len: usize| {
            usize::try_from(place as i64 - by).ok().filter(|&place| place < len)
        };
        let (plane, within) = (place / (rows * columns), place % (rows * columns));
        let column = within % columns;
        let column = if self.mirrored { columns - 1 - column } else { column };
        let (row, column) = (from(within / columns, self.by[0], rows)?, from(column, self.by[1], columns)?);
        Some((plane * rows + row) * columns + column)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_are_moved_and_then_mirrored() {
        let image: Vec<u32> = (1..=12).collect();
        let moved = |down, right, mirrored| Move { by: [down, right], mirrored }.image(&image, [2, 3]);
        assert_eq!(moved(0, 0, false), image);
        assert_eq!(moved(0, 0, true), [3, 2, 1, 6, 5, 4, 9, 8, 7, 12, 11, 10]);
        assert_eq!(moved(1, 0, false), [0, 0, 0, 1, 2, 3, 0, 0, 0, 7, 8, 9]);
        assert_eq!(moved(-1, 1, false), [0, 4, 5, 0, 0, 0, 0, 10, 11, 0, 0, 0]);
        assert_eq!(moved(-1, 1, true), [5, 4, 0, 0, 0, 0, 11, 10, 0, 0, 0, 0]);
        assert_eq!(moved(9, -9, true), [0; 12]);
    }

    /// Golden moves, made from the contract's text by a script in another language (assets/vectors/batches.py).
    #[test]
    fn moves_are_the_golden_ones() {
        let golden: serde_json::Value =
            serde_json::from_str(include_str!("../../../../assets/vectors/batches.json")).unwrap();
        let cases = golden["moves"].as_array().unwrap();
        for case in cases {
            let number = |key: &str| case[key].as_u64().unwrap() as u32;
            let augment = Augment { crop: number("crop"), flip: case["flip"].as_bool().unwrap() };
            let at = Place { step: number("step"), batch: 1 << 24, place: number("place") };
            let expected: Vec<u32> =
                case["image"].as_array().unwrap().iter().map(|n| n.as_u64().unwrap() as u32).collect();
            let image: Vec<u32> = (1..=24).collect();
            let moved = Move::of(augment, [0x1234_5678, 0x9abc_def0], at).image(&image, [3, 4]);
            assert_eq!(moved, expected, "{case}");
        }
        assert!(cases.len() >= 20);
    }
}
