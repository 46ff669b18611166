//! Shard maps: the slices of a training state that one device holds, and the digest of such a shard.
//!
//! A device of a data-parallel run holds the whole state. A device of a sharded run holds ranges of elements of some
//! tensors. Anybody who has the state, for example by replaying a step, computes the same digest from it. Layout:
//! docs/MONITORING-FORMAT.md, "Shard maps".

use tiebreak_contract::arith::DType;
use tiebreak_contract::program::graph::TensorType;
use tiebreak_contract::program::step::StateTensor;
use tiebreak_record::commit::codec::Encoder;
use tiebreak_record::commit::digest::{Digest, hash};
use tiebreak_record::commit::{Malformed, beginning, tensor};

use crate::header;

/// The most bytes of a shard map's text.
pub const TEXT_MAX: usize = 1 << 24;
const HEADER: &str = "tiebreak shard map 1";
const WHAT: &str = "shard map";

/// Elements `first..first + count` of one tensor of the state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slice {
    /// The tensor's name in the state, such as `param/head.weight` or `adam_m/head.weight`.
    pub tensor: String,
    /// The first element, in the tensor's canonical order.
    pub first: u64,
    /// The number of elements, at least 1.
    pub count: u32,
}

/// The part of the state that a device holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ShardMap {
    /// The whole state. Its digest is the state digest that records have.
    Whole,
    /// Slices in the state's order: tensors in the program's order, ranges ascending and apart.
    Slices(Vec<Slice>),
}

impl Slice {
    /// The slice's digest within its tensor's canonical bytes: the tensor digest of its elements, as F32 of one dimension.
    ///
    /// # Panics
    /// If the slice leaves the tensor, which [`ShardMap::check`] excludes.
    pub fn digest_in(&self, tensor: &[u8]) -> Digest {
        let first = 4 * self.first as usize;
        self.digest_of(&tensor[first..first + 4 * self.count as usize])
    }

    /// The slice's digest from its own canonical bytes.
    fn digest_of(&self, bytes: &[u8]) -> Digest {
        tensor::digest(&TensorType { dtype: DType::F32, shape: vec![self.count] }, bytes)
    }
}

fn invalid(line: usize, why: &str) -> Malformed {
    Malformed::invalid(WHAT, format!("line {line} {why}"))
}

/// A decimal number in its shortest form.
fn number(line: usize, text: &str) -> Result<u64, Malformed> {
    let parsed = text.parse::<u64>().ok().filter(|number| number.to_string() == text);
    parsed.ok_or_else(|| {
        invalid(line, "has no decimal number where one belongs: the form is `FIRST COUNT TENSOR`")
    })
}

impl ShardMap {
    /// The one text of the map.
    pub fn to_text(&self) -> String {
        match self {
            ShardMap::Whole => format!("{HEADER}\nwhole\n"),
            ShardMap::Slices(slices) => {
                let lines = slices.iter().map(|s| format!("{} {} {}\n", s.first, s.count, s.tensor));
                format!("{HEADER}\n{}", lines.collect::<String>())
            }
        }
    }

    /// Parses the text of [`ShardMap::to_text`].
    ///
    /// # Errors
    /// If the text is longer than [`TEXT_MAX`], has another header or form, holds no slice, or ends without a line end.
    pub fn from_text(text: &str) -> Result<ShardMap, Malformed> {
        if text.len() > TEXT_MAX {
            return Err(Malformed::TooLarge { what: WHAT, limit: TEXT_MAX as u64 });
        }
        let body = header::after(text, HEADER, WHAT)?;
        if body == "whole\n" {
            return Ok(ShardMap::Whole);
        }
        let body = body
            .strip_suffix('\n')
            .ok_or_else(|| Malformed::invalid(WHAT, "the last line has no line end"))?;
        let slices = body.split('\n').enumerate().map(|(index, text)| {
            let line = index + 2;
            let mut words = text.splitn(3, ' ');
            let (Some(first), Some(count), Some(tensor)) = (words.next(), words.next(), words.next()) else {
                return Err(invalid(
                    line,
                    &format!("is {:?}; the form is `FIRST COUNT TENSOR`", beginning(text)),
                ));
            };
            if tensor.is_empty() || tensor.chars().any(char::is_control) {
                return Err(invalid(line, "names no tensor"));
            }
            let (first, count) = (number(line, first)?, number(line, count)?);
            let fits = u32::try_from(count).ok().filter(|count| *count > 0);
            let count = fits.ok_or_else(|| {
                invalid(line, &format!("has a count of {count}; 1 to {} are possible", u32::MAX))
            })?;
            Ok(Slice { tensor: tensor.to_string(), first, count })
        });
        Ok(ShardMap::Slices(slices.collect::<Result<_, _>>()?))
    }

    /// The digest by which chips' records name the map.
    pub fn digest(&self) -> Digest {
        hash("tiebreak 2 shard-map", self.to_text().as_bytes())
    }

    /// Checks that every slice is in the state, and that slices stand in the state's order without overlap.
    ///
    /// # Errors
    /// If a slice names an unknown tensor, leaves it, or stands before or in an earlier slice.
    pub fn check(&self, state: &[StateTensor]) -> Result<(), Malformed> {
        let ShardMap::Slices(slices) = self else { return Ok(()) };
        let (mut tensor, mut end) = (0, 0);
        for (index, slice) in slices.iter().enumerate() {
            let line = index + 2;
            // Slices follow the state's order, so one walk over the state finds all of them.
            while state.get(tensor).is_some_and(|t| t.name != slice.tensor) {
                (tensor, end) = (tensor + 1, 0);
            }
            let Some(found) = state.get(tensor) else {
                let why = format!(
                    "names {:?}, which is no tensor of the state, or stands before an earlier line's",
                    slice.tensor
                );
                return Err(invalid(line, &why));
            };
            if slice.first < end {
                return Err(invalid(
                    line,
                    &format!("begins at element {}; the line before ends at {end}", slice.first),
                ));
            }
            let elements = found.ty().len() as u64;
            end = slice.first.saturating_add(u64::from(slice.count));
            if end > elements {
                return Err(invalid(line, &format!("ends at element {end}; the tensor has {elements}")));
            }
        }
        Ok(())
    }

    /// The digest of a shard with slices, from the canonical bytes of each slice: H("tiebreak 2 shard", digest of the map, list
    /// of the slices' tensor digests as F32 of one dimension). `bytes` gives a slice's bytes; nothing else is copied.
    ///
    /// `None` for the whole state, whose digest is the state digest.
    ///
    /// # Errors
    /// As `bytes`.
    pub fn shard_digest<E>(
        &self,
        mut bytes: impl FnMut(&Slice) -> Result<Vec<u8>, E>,
    ) -> Result<Option<Digest>, E> {
        let ShardMap::Slices(slices) = self else { return Ok(None) };
        let digests = slices.iter().map(|slice| Ok(slice.digest_of(&bytes(slice)?)));
        Ok(Some(self.digest_of_slices(&digests.collect::<Result<Vec<_>, E>>()?)))
    }

    /// The digest of a shard from the digests of its slices, in order ([`Slice::digest_in`]).
    pub fn digest_of_slices(&self, slices: &[Digest]) -> Digest {
        let mut encoder = Encoder::default();
        encoder.digest(&self.digest()).list(slices, |e, digest| {
            e.digest(digest);
        });
        hash("tiebreak 2 shard", &encoder.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state() -> Vec<StateTensor> {
        [("param/a", vec![2, 3]), ("param/b", vec![5]), ("m/a", vec![2, 3])]
            .map(|(name, shape)| StateTensor { name: name.to_string(), shape })
            .to_vec()
    }

    fn map(lines: &str) -> Result<ShardMap, Malformed> {
        ShardMap::from_text(&format!("{HEADER}\n{lines}"))
    }

    #[test]
    fn a_map_has_one_text() {
        for lines in ["whole\n", "0 6 param/a\n", "1 2 param/a\n4 1 param/a\n0 5 param/b\n3 3 m/a\n"] {
            let map = map(lines).unwrap();
            map.check(&state()).unwrap();
            assert_eq!(map.to_text(), format!("{HEADER}\n{lines}"));
        }
        for lines in [
            "",
            "whole",
            "\n",
            "0 6\n",
            "00 6 param/a\n",
            "+1 2 param/a\n",
            "0 0 param/a\n",
            "0 6 param/a",
            "0 6 \n",
            "0 4294967296 param/a\n",
            "whole\nwhole\n",
            " 0 6 param/a\n",
        ] {
            assert!(map(lines).is_err(), "{lines:?}");
        }
    }

    #[test]
    fn slices_lie_in_the_state_in_its_order() {
        for lines in [
            "0 7 param/a\n",
            "6 1 param/a\n",
            "0 2 param/a\n1 1 param/a\n",
            "0 5 param/b\n0 6 param/a\n",
            "0 1 m/b\n",
        ] {
            assert!(map(lines).unwrap().check(&state()).is_err(), "{lines:?}");
        }
    }

    #[test]
    fn a_shard_has_another_digest_if_a_byte_or_the_map_differs() {
        let digest = |lines: &str, byte: u8| {
            let bytes = |slice: &Slice| Ok::<_, Malformed>(vec![byte; 4 * slice.count as usize]);
            map(lines).unwrap().shard_digest(bytes).unwrap()
        };
        assert_eq!(digest("whole\n", 0), None);
        // In place, and by itself.
        let slices = map("2 3 param/a\n").unwrap();
        let ShardMap::Slices(list) = &slices else { panic!() };
        let tensor: Vec<u8> = (0..24).collect();
        let own = slices.shard_digest(|_| Ok::<_, Malformed>(tensor[8..20].to_vec())).unwrap();
        assert_eq!(own, Some(slices.digest_of_slices(&[list[0].digest_in(&tensor)])));
        let all =
            [("0 6 param/a\n", 0), ("0 6 param/a\n", 1), ("0 6 m/a\n", 0), ("0 3 param/a\n3 3 param/a\n", 0)];
        let digests: std::collections::BTreeSet<_> =
            all.map(|(lines, byte)| digest(lines, byte).unwrap()).into();
        assert_eq!(digests.len(), all.len());
    }
}
