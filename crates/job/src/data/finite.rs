//! Inputs that are not finite: the samples of the data files that hold them.

use super::batch::Dataset;
use crate::manifest::DataError;
use tiebreak_contract::arith::float;

/// The values of a file that are not finite.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileNotFinite {
    /// The file's number among the job's.
    pub file: usize,
    /// The first sample in the file with such a value.
    pub sample: u64,
    /// The first such element of that sample.
    pub element: u64,
    /// The value of that element, a binary32 pattern.
    pub value: u32,
    /// The number of samples with such a value.
    pub samples: u64,
}

impl Dataset {
    /// The values among the inputs that are not finite, file by file; none where inputs are integers. All samples are read, one
    /// after another. `progress` gets the number of samples done and the number of all samples.
    ///
    /// # Errors
    /// If a file cannot be read, or does not match its manifest.
    #[doc(hidden)] // for the layers above
    pub fn not_finite(
        &mut self,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Vec<FileNotFinite>, DataError> {
        let mut found: Vec<FileNotFinite> = Vec::new();
        let samples = if self.has_float_inputs() { self.all_samples() } else { 0 };
        for number in 0..samples {
            let (words, file, sample) = self.inputs(number)?;
            let bad = (0..).zip(words).find(|(_, word)| !float::is_finite(*word));
            if let Some((element, value)) = bad {
                match found.iter_mut().find(|found| found.file == file) {
                    Some(found) => found.samples += 1,
                    None => found.push(FileNotFinite { file, sample, element, value, samples: 1 }),
                }
            }
            progress(number + 1, samples);
        }
        Ok(found)
    }
}
