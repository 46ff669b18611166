//! Metrics of a run while it trains: lines of JSON, and an event file that TensorBoard reads. Metrics are for people; no record
//! commits them and no audit reads them. Layout: `docs/RUN-FORMAT.md`.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Read};
use std::time::SystemTime;

use serde::Serialize;

use super::error::RunError;
use super::stored::{Reading, Stored};

/// The most bytes of a line or of an event; ours are below 1 KiB.
const ENTRY_MAX: u64 = 1 << 16;

/// The most bytes of a file of metrics that are read.
const FILE_MAX: u64 = 1 << 30;

/// The measurements of a step.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct StepMetrics {
    /// The step, from 1.
    pub step: u32,
    /// The mean loss of the batch.
    pub loss: f32,
    /// The learning rate.
    pub learning_rate: f32,
    /// The gradient's global norm before clipping.
    pub norm: f32,
    /// The factor that the gradient was clipped by.
    pub clip: f32,
    /// The seconds that the step took, its commitments included.
    pub seconds: f64,
    /// Samples a second.
    pub samples_per_second: f64,
}

/// The results of an evaluation of the state after a step.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct EvaluationMetrics {
    /// The step, from 0.
    pub step: u32,
    /// The mean loss of the evaluation's labels.
    pub evaluation_loss: f32,
    /// The share of the labels that the model finds most likely, 0 to 1.
    pub evaluation_accuracy: f64,
    /// e^loss.
    pub evaluation_perplexity: f64,
}

/// Both files of a run's metrics, open for appending.
pub struct Metrics {
    lines: Stored,
    events: Stored,
}

impl Metrics {
    /// Opens a run's metrics, or makes them. Everything after step `done` is cut off, because training continues from that step.
    ///
    /// # Errors
    /// If a file is a link, or the system refuses.
    pub fn open(lines: impl Into<Stored>, events: impl Into<Stored>, done: u32) -> Result<Metrics, RunError> {
        let (lines, events) = (lines.into(), events.into());
        cut(&lines, |file| lines_until(file, done))?;
        if cut(&events, |file| events_until(file, done))? == 0 {
            let header = [field(3, 2), vec![13], b"brain.Event:2".to_vec()].concat();
            events.append(&framed(&event(0, &header)))?;
        }
        Ok(Metrics { lines, events })
    }

    /// Appends a step.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn step(&mut self, step: &StepMetrics) -> Result<(), RunError> {
        let scalars = [
            ("train/loss", step.loss),
            ("train/learning_rate", step.learning_rate),
            ("train/gradient_norm", step.norm),
            ("train/clip_factor", step.clip),
            ("train/seconds_per_step", step.seconds as f32),
            ("train/samples_per_second", step.samples_per_second as f32),
        ];
        let named = [("loss", step.loss), ("norm", step.norm), ("clip", step.clip)];
        self.append(step.step, step, &named, &scalars)
    }

    /// Appends an evaluation.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn evaluation(&mut self, found: &EvaluationMetrics) -> Result<(), RunError> {
        let scalars = [
            ("evaluation/loss", found.evaluation_loss),
            ("evaluation/accuracy", found.evaluation_accuracy as f32),
            ("evaluation/perplexity", found.evaluation_perplexity as f32),
        ];
        let named = [
            ("evaluation_loss", found.evaluation_loss),
            ("evaluation_perplexity", found.evaluation_perplexity as f32),
        ];
        self.append(found.step, found, &named, &scalars)
    }

    fn append(
        &mut self,
        step: u32,
        line: &impl Serialize,
        named: &[(&str, f32)],
        scalars: &[(&str, f32)],
    ) -> Result<(), RunError> {
        let line = Line { line, not_finite: not_finite(named) };
        let line =
            serde_json::to_string(&line).map_err(io::Error::from).map_err(RunError::io(self.lines.path()))?;
        self.lines.append(format!("{line}\n").as_bytes())?;
        let values = scalars.iter().flat_map(|(tag, value)| {
            let name = [field(1, 2), varint(tag.len() as u64), tag.as_bytes().to_vec()].concat();
            delimited(1, &[name, field(2, 5), value.to_le_bytes().to_vec()].concat())
        });
        let summary = delimited(5, &values.collect::<Vec<u8>>());
        self.events.append(&framed(&event(step, &summary)))
    }
}

/// A line as it is written. JSON has no numbers that are not finite: null stands for such a number, and a separate field names
/// it.
#[derive(Serialize)]
struct Line<'a, T: Serialize> {
    #[serde(flatten)]
    line: &'a T,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    not_finite: BTreeMap<&'a str, &'static str>,
}

/// The names of the values that are not finite, each with `NaN`, `inf` or `-inf`.
fn not_finite<'a>(named: &[(&'a str, f32)]) -> BTreeMap<&'a str, &'static str> {
    let name = |value: f32| match value {
        f32::INFINITY => "inf",
        f32::NEG_INFINITY => "-inf",
        _ => "NaN",
    };
    named.iter().filter(|(_, value)| !value.is_finite()).map(|&(key, value)| (key, name(value))).collect()
}

/// The points (step, value) of every line of a run's metrics that has this key; empty if there are no metrics. A value that is no
/// number is NaN.
///
/// # Errors
/// If the file is a link or larger than 1 GiB, a line is too long or no JSON with a step, or the system refuses.
pub fn points(file: impl Into<Stored>, key: &str) -> Result<Vec<(f64, f64)>, RunError> {
    let file = file.into();
    if !file.is_here() {
        return Ok(Vec::new());
    }
    let path = file.path();
    let mut file = BufReader::new(file.open()?.take(FILE_MAX));
    let (mut points, mut line) = (Vec::new(), Vec::new());
    for number in 1.. {
        line.clear();
        let len = file.by_ref().take(ENTRY_MAX).read_until(b'\n', &mut line).map_err(RunError::io(path))?;
        // A trainer may be writing the last line.
        if len == 0 || line.last() != Some(&b'\n') && (len as u64) < ENTRY_MAX {
            break;
        }
        let parsed = serde_json::from_slice::<serde_json::Value>(&line).ok();
        let step = parsed.as_ref().and_then(|line| line.get("step")?.as_f64());
        let (Some(parsed), Some(step)) = (parsed, step) else {
            return Err(RunError::invalid(path, format!("line {number} is no JSON with a step")));
        };
        points.extend(parsed.get(key).map(|value| (step, value.as_f64().unwrap_or(f64::NAN))));
    }
    Ok(points)
}

/// Cuts a file to the length that `keep` finds, if there is one. Returns that length.
fn cut(
    file: &Stored,
    keep: impl FnOnce(&mut BufReader<Reading>) -> io::Result<u64>,
) -> Result<u64, RunError> {
    if file.length_or_0()? == 0 {
        return Ok(0);
    }
    let len = keep(&mut BufReader::new(file.open()?)).map_err(RunError::io(file.path()))?;
    file.truncate(len)?;
    Ok(len)
}

/// The bytes of the first lines whose steps are at most `done`.
fn lines_until(file: &mut impl BufRead, done: u32) -> io::Result<u64> {
    #[derive(serde::Deserialize)]
    struct Line {
        step: u32,
    }
    let mut len = 0;
    loop {
        let mut line = Vec::new();
        file.by_ref().take(ENTRY_MAX).read_until(b'\n', &mut line)?;
        let is_kept = serde_json::from_slice::<Line>(&line).is_ok_and(|line| line.step <= done);
        if !is_kept || line.last() != Some(&b'\n') {
            return Ok(len);
        }
        len += line.len() as u64;
    }
}

/// The bytes of the first events whose steps are at most `done`.
fn events_until(file: &mut impl BufRead, done: u32) -> io::Result<u64> {
    let mut kept = 0;
    loop {
        let mut len = [0; 8];
        if file.read_exact(&mut len).is_err() || u64::from_le_bytes(len) > ENTRY_MAX {
            return Ok(kept);
        }
        // The CRC of the length, the event, and its CRC.
        let mut rest = vec![0; u64::from_le_bytes(len) as usize + 8];
        if file.read_exact(&mut rest).is_err() {
            return Ok(kept);
        }
        let data = &rest[4..rest.len() - 4];
        if framed(data) != [&len[..], &rest].concat()
            || step_of(data).is_none_or(|step| step > u64::from(done))
        {
            return Ok(kept);
        }
        kept += 8 + rest.len() as u64;
    }
}

/// The step of an event that [`event`] made.
fn step_of(event: &[u8]) -> Option<u64> {
    let rest = event.get(9..)?.strip_prefix(&[0x10])?;
    let end = rest.iter().take(5).position(|byte| byte & 0x80 == 0)?;
    Some((0..=end).map(|i| u64::from(rest[i] & 0x7f) << (7 * i)).sum())
}

/// The Event message of TensorBoard (event.proto): wall_time (field 1, double), step (2, int64), then `rest`.
fn event(step: u32, rest: &[u8]) -> Vec<u8> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0.0, |d| d.as_secs_f64());
    [field(1, 1), now.to_le_bytes().to_vec(), field(2, 0), varint(step.into()), rest.to_vec()].concat()
}

/// The key of a protobuf field: its number and wire type.
fn field(number: u64, wire: u64) -> Vec<u8> {
    varint(number << 3 | wire)
}

/// A protobuf field that is a message or a text.
fn delimited(number: u64, bytes: &[u8]) -> Vec<u8> {
    [field(number, 2), varint(bytes.len() as u64), bytes.to_vec()].concat()
}

/// A protobuf integer: seven bits a byte, the low ones first.
fn varint(mut n: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while n >= 0x80 {
        bytes.push(n as u8 | 0x80);
        n >>= 7;
    }
    bytes.push(n as u8);
    bytes
}

/// A TFRecord (tensorflow/core/lib/io/record_writer.h): length, its CRC, the data, their CRC.
fn framed(data: &[u8]) -> Vec<u8> {
    let len = (data.len() as u64).to_le_bytes();
    [&len, &masked_crc(&len).to_le_bytes()[..], data, &masked_crc(data).to_le_bytes()].concat()
}

/// CRC-32C (Castagnoli), rotated and shifted as TFRecords have it.
fn masked_crc(bytes: &[u8]) -> u32 {
    let mut crc = !0u32;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = (crc >> 1) ^ ((crc & 1) * 0x82f6_3b78);
        }
    }
    (!crc).rotate_right(15).wrapping_add(0xa282_ead8)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::names;
    use crate::run::paths::RunPaths;

    fn step(step: u32) -> StepMetrics {
        StepMetrics {
            step,
            loss: 2.5,
            learning_rate: 1e-3,
            norm: f32::NAN,
            clip: 1.0,
            seconds: 0.5,
            samples_per_second: 8.0,
        }
    }

    fn steps(layout: &RunPaths) -> (Vec<u64>, Vec<u64>) {
        let text = std::fs::read_to_string(layout.metrics()).unwrap();
        let line =
            |line: &str| serde_json::from_str::<serde_json::Value>(line).unwrap()["step"].as_u64().unwrap();
        let bytes = std::fs::read(layout.root.join(names::EVENTS)).unwrap();
        let (mut at, mut events) = (0, Vec::new());
        while at < bytes.len() {
            let len = u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap()) as usize;
            events.push(step_of(&bytes[at + 12..at + 12 + len]).unwrap());
            at += len + 16;
        }
        (text.lines().map(line).collect(), events)
    }

    #[test]
    fn a_resume_leaves_no_step_twice() {
        let folder = tempfile::tempdir().unwrap();
        let layout = RunPaths { root: folder.path().to_path_buf() };
        let mut metrics = Metrics::open(&layout.metrics(), &layout.root.join(names::EVENTS), 0).unwrap();
        (1..=200).for_each(|n| metrics.step(&step(n)).unwrap());
        drop(metrics);
        // A kill may leave half of an entry.
        for path in [layout.metrics(), layout.root.join(names::EVENTS)] {
            let bytes = std::fs::read(&path).unwrap();
            std::fs::write(&path, &bytes[..bytes.len() - 5]).unwrap();
        }
        let mut metrics = Metrics::open(&layout.metrics(), &layout.root.join(names::EVENTS), 198).unwrap();
        (199..=201).for_each(|n| metrics.step(&step(n)).unwrap());
        let expected: Vec<u64> = (1..=201).collect();
        assert_eq!(steps(&layout), (expected.clone(), [vec![0], expected].concat()));
        // A file that holds no metrics is begun again.
        std::fs::write(layout.metrics(), "{}\n").unwrap();
        std::fs::write(layout.root.join(names::EVENTS), [0xff; 40]).unwrap();
        drop(Metrics::open(&layout.metrics(), &layout.root.join(names::EVENTS), 5).unwrap());
        assert_eq!(steps(&layout), (vec![], vec![0]));
    }

    #[test]
    fn a_line_is_json_whatever_the_values_are() {
        let folder = tempfile::tempdir().unwrap();
        let layout = RunPaths { root: folder.path().to_path_buf() };
        let mut metrics = Metrics::open(&layout.metrics(), &layout.root.join(names::EVENTS), 0).unwrap();
        metrics.step(&StepMetrics { loss: f32::NEG_INFINITY, ..step(1) }).unwrap();
        metrics.step(&StepMetrics { norm: 1.0, ..step(2) }).unwrap();
        let found = EvaluationMetrics {
            step: 2,
            evaluation_loss: 100.0,
            evaluation_accuracy: 0.5,
            evaluation_perplexity: f64::INFINITY,
        };
        metrics.evaluation(&found).unwrap();
        let text = std::fs::read_to_string(layout.metrics()).unwrap();
        let lines: Vec<serde_json::Value> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let named = serde_json::json!({ "loss": "-inf", "norm": "NaN" });
        assert_eq!((&lines[0]["loss"], &lines[0]["not_finite"]), (&serde_json::Value::Null, &named));
        assert_eq!((lines[1]["loss"].as_f64(), lines[1].get("not_finite")), (Some(2.5), None));
        assert_eq!(lines[2]["not_finite"], serde_json::json!({ "evaluation_perplexity": "inf" }));
        assert!(points(&layout.metrics(), "loss").unwrap()[0].1.is_nan());
    }

    #[test]
    fn the_checksum_is_that_of_the_standard() {
        // RFC 3720, appendix B.4: 32 bytes of zeros have CRC-32C 8a9136aa.
        let crc = 0x8a91_36aau32;
        assert_eq!(masked_crc(&[0; 32]), crc.rotate_right(15).wrapping_add(0xa282_ead8));
    }
}
