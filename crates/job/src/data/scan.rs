//! Checks every token id and every label against the model's bounds, in one pass over the files, before a run begins.
//!
//! A batch checks the samples that it draws in any case, and a dispute is about that check. The scan finds the error before
//! anybody trains for a day.

use std::path::Path;

use super::batch::{Dataset, Vocabulary};
use super::layout::{Numbers, Window};
use super::mask::targets;
use crate::manifest::DataError;

/// More classes than any model has.
const CLASSES_MAX: i64 = 1 << 20;
/// Bytes that are checked together.
const PIECE: u64 = 1 << 20;

/// A number that is not below its bound.
#[derive(Clone, Copy)]
struct Wrong {
    /// The number's index among the file's numbers.
    place: u64,
    number: i64,
}

/// The result of a pass over numbers.
struct Found {
    /// The first wrong number.
    first: Option<Wrong>,
    wrong: u64,
    least: i64,
    most: i64,
    /// True if masking may choose one of the numbers, or the job masks nothing.
    maskable: bool,
}

impl Dataset {
    /// Two texts that decide the result of [`Dataset::scan`], apart from the files' contents. The first covers model and
    /// tokenizer. The second covers the model alone: a scan by the first that finds nothing implies that a scan by the second
    /// finds nothing.
    #[doc(hidden)] // for the layers above
    pub fn scanned(&self) -> [String; 2] {
        let uncounted: Vec<u32> = self.masked().iter().map(|(_, label)| *label).collect();
        let uncounted = if uncounted.is_empty() { String::new() } else { format!(", not {uncounted:?}") };
        let never = self.never_masked().map_or(String::new(), |never| format!(", never {never:?}"));
        [self.numbers(), self.numbers_of_model()].map(|numbers| format!("{numbers:?}{uncounted}{never}"))
    }

    /// The number of bytes that a scan reads.
    #[doc(hidden)] // for the layers above
    pub fn scanned_bytes(&self) -> u64 {
        self.numbers().iter().map(Numbers::bytes).sum()
    }

    /// Checks every token id and every label. `names` are the job's names of the files, for errors; without them errors name
    /// files by their paths.
    ///
    /// # Errors
    /// If a number is not below the model's bound or no token of the tokenizer, masking can choose no token, or a file cannot be
    /// read or does not match its manifest.
    #[doc(hidden)] // for the layers above
    pub fn scan(&mut self, names: Option<&[&str]>, watch: &mut dyn FnMut(u64)) -> Result<(), DataError> {
        let (mut done, mut maskable) = (0, self.never_masked().is_none());
        for numbers in self.numbers() {
            let found = self.pass(&numbers, &mut |bytes| watch(done + bytes))?;
            done += numbers.bytes();
            maskable |= found.maskable;
            let Some(first) = found.first else { continue };
            let path = self.file(numbers.file).path();
            let why = numbers.why(first, &found, self.tighter());
            return Err(match names.and_then(|names| names.get(numbers.file)) {
                Some(name) => DataError::invalid(
                    Path::new(name),
                    format!("{why} (the run reads it from {})", path.display()),
                ),
                None => DataError::invalid(path, why),
            });
        }
        if let Some(tokens) = self.numbers().first().filter(|_| !maskable) {
            let why = "masking can choose no token: each is one that data.masking.never or loss.ignore names. Leave the tokens that the model learns out of them";
            return Err(DataError::invalid(self.file(tokens.file).path(), why));
        }
        targets(self).map(drop)
    }

    fn pass(&mut self, numbers: &Numbers, watch: &mut dyn FnMut(u64)) -> Result<Found, DataError> {
        let Numbers { first, stride, elements, count, element, below, .. } = *numbers;
        let never = self.never_masked();
        let maskable = never.is_none();
        let mut found = Found { first: None, wrong: 0, least: i64::MAX, most: i64::MIN, maskable };
        let never = never.unwrap_or_default();
        let span = elements * element.size();
        let (mut sample, each) = (0, (PIECE / stride.max(1)).max(1));
        while sample < count {
            let many = each.min(count - sample);
            let len = ((many - 1) * stride + span) as usize;
            let bytes = self.file_mut(numbers.file).read_passing(first + sample * stride, len)?;
            let mut place = sample * elements;
            let mut look = |number: i64| {
                if !(0..i64::from(below)).contains(&number) {
                    found.first.get_or_insert(Wrong { place, number });
                    found.wrong += 1;
                }
                (found.least, found.most) = (found.least.min(number), found.most.max(number));
                found.maskable = found.maskable || !never.iter().any(|&never| i64::from(never) == number);
                place += 1;
            };
            match stride == span {
                true => element.integers(&bytes, &mut look),
                false => bytes
                    .chunks(stride as usize)
                    .for_each(|one| element.integers(&one[..span as usize], &mut look)),
            }
            sample += many;
            watch((sample * stride).min(numbers.bytes()));
        }
        Ok(found)
    }
}

impl Numbers {
    fn bytes(&self) -> u64 {
        self.count * self.stride
    }

    /// The error, and what to do about it.
    fn why(&self, first: Wrong, found: &Found, tokenizer: Option<&Vocabulary>) -> String {
        let Wrong { place, number } = first;
        let Numbers { below, count, elements, window, .. } = *self;
        let Found { wrong, least, most, .. } = found;
        let all = count * elements;
        let range = format!("{wrong} of {all} are not below {below}; they go from {least} to {most}");
        if let Some(Window { context, separate, is_mask }) = window {
            let samples = match [place.saturating_sub(context), place.min(count - context - 1)] {
                _ if separate => format!("sample {}", place / (context + 1)),
                [from, to] => format!("samples {from} to {to}"),
            };
            if is_mask {
                return format!(
                    "its byte {place} (of {samples}, counted from 0) is {number}, and a mask has 0 (the target does not count) or 1 (it counts): {range}"
                );
            }
            let token = format!("its token {place} (of {samples}, counted from 0) is {number}");
            if let Some(Vocabulary { name, .. }) = tokenizer {
                return format!(
                    "{token}, and the ids of the tokenizer {name} are below {below}: {range}. The file was made by another tokenizer, or the \
                     tokenizer's added tokens are missing; a run keeps its tokenizer, so put the right one there, or none"
                );
            }
            return format!(
                "{token}, and the model's tokens are below {below} (model.vocabulary): {range}. Set model.vocabulary to {} or more, or use the tokenizer that the model is for",
                most + 1
            );
        }
        let name = &self.name;
        let shift = match (*least, *most) {
            (1, most) if most == i64::from(below) => {
                " They count from 1: subtract 1 from each, or".to_string()
            }
            (least, _) if least < 0 => {
                " A label that has no loss is one of the classes that loss.ignore names, never negative. Or"
                    .into()
            }
            _ => String::new(),
        };
        let advice = match *most < CLASSES_MAX {
            true => format!(
                "{} model.classes to {} or more (make a program file for as many)",
                if shift.is_empty() { "Set" } else { "set" },
                (most + 1).max(1)
            ),
            false => "No model has so many classes: these are no labels".into(),
        };
        format!(
            "sample {} of the file (counted from 0) has {number} among its {name}, and the model's are below {below} (model.classes): {range}.{shift} {advice}",
            place / elements.max(1)
        )
    }
}
