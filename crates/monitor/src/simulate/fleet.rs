//! A simulated fleet: its register, its chips' keys, and the log that a chip has on a day.

use std::collections::HashSet;

use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::keys::PrivateKey;
use tiebreak_record::commit::{Malformed, merkle};

use crate::register::entry::{Change, Entry};
use crate::register::history::Register;
use crate::snapshot::record::{Event, NO_LINK, Record, Serial, Shard, SignedRecord};

/// The day on which all chips enter, in days since 1970.
const ENTERED: u64 = 20_000;
/// Milliseconds of a day.
const DAY: f64 = 86_400_000.0;
/// Steps of a declared run in a day.
const STEPS_A_DAY: f64 = 100.0;

/// Numbers that follow from a seed: splitmix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators").
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The numbers of one part of a simulation.
    pub fn of(parts: &[u64]) -> Random {
        let bytes: Vec<u8> = parts.iter().flat_map(|part| part.to_le_bytes()).collect();
        let [a, b, c, d, e, f, g, h, ..] = merkle::leaf(&bytes).0;
        Random(u64::from_le_bytes([a, b, c, d, e, f, g, h]))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A waiting time of a Poisson process of this rate.
    fn wait(&mut self, rate: f64) -> f64 {
        // 53 bits, above 0 and at most 1.
        let uniform = ((self.next() >> 11) + 1) as f64 / (1u64 << 53) as f64;
        -uniform.ln() / rate
    }
}

/// An operator's plan with its hidden run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Evasion {
    /// Nothing is hidden.
    Honest,
    /// The run is not declared; its chips log as they should.
    Undeclared,
    /// The run is not declared, and its chips log nothing while it lasts.
    Silent,
}

/// The hidden run of a simulated operator.
#[derive(Clone, Copy, Debug)]
pub struct Hidden {
    /// The way in which the run is hidden.
    pub evasion: Evasion,
    /// Its chips: the first so many of the fleet. Draws favour no chip, so the choice says nothing.
    pub chips: u64,
    /// Its days, from day 0 on.
    pub days: f64,
}

/// A fleet with a register, all of whose chips are monitored.
pub struct Fleet {
    /// The register.
    pub register: Register,
    /// The chips' serial numbers, by the chips' numbers.
    pub serials: Vec<Serial>,
}

fn key(chip: u64) -> Result<PrivateKey, Malformed> {
    let mut seed = [0x5a; 32];
    seed[..8].copy_from_slice(&chip.to_le_bytes());
    PrivateKey::generate("chip", seed)
}

/// The digest of a simulated state.
fn state(run: u64, step: u32) -> Digest {
    merkle::leaf(&[&run.to_le_bytes()[..], &step.to_le_bytes()].concat())
}

/// The digests of all states of the declared run, up to a day.
pub fn declared(days: f64) -> HashSet<Digest> {
    (0..=(days * STEPS_A_DAY) as u32).map(|step| state(0, step)).collect()
}

/// The time of a day, in milliseconds since 1970.
pub fn milliseconds(day: f64) -> u64 {
    ((ENTERED as f64 + day) * DAY) as u64
}

impl Fleet {
    /// A fleet of so many chips of one owner.
    ///
    /// # Errors
    /// If a register cannot hold so many.
    pub fn new(chips: u64) -> Result<Fleet, Malformed> {
        let mut register = Register::new("simulated")?;
        let mut serials = Vec::new();
        for chip in 0..chips {
            let serial = Serial::new(&format!("chip-{chip}"))?;
            let [model, owner, site] = ["simulated", "operator", "hall"].map(String::from);
            let key = key(chip)?.public().to_text();
            let change = Change::Enter { key, model, owner, site, exempt: None };
            register.append(Entry { time: ENTERED * 86_400, serial: serial.clone(), change })?;
            serials.push(serial);
        }
        Ok(Fleet { register, serials })
    }

    /// The bytes of a chip's log on a day of a trial, as the chip wrote and signed them.
    ///
    /// # Errors
    /// Never: a simulated chip has a name.
    pub fn log(
        &self,
        chip: u64,
        (rate, until): (f64, f64),
        hidden: &Hidden,
        mut random: Random,
    ) -> Result<Vec<u8>, Malformed> {
        let (key, serial) = (key(chip)?, &self.serials[chip as usize]);
        let part = hidden.evasion != Evasion::Honest && chip < hidden.chips;
        let shard = Shard { map: state(2, 0), code: state(3, 0) };
        let attach = |run: u64| Event::Attach { shard, computation: state(run, u32::MAX) };
        let mut events = vec![(0.0, Event::Begin), (0.0, attach(u64::from(part)))];
        let mut day = random.wait(rate);
        let mut hides = part;
        while day <= until {
            if hides && day > hidden.days {
                events.push((hidden.days, attach(0)));
                hides = false;
            }
            let step = (day * STEPS_A_DAY) as u32;
            if !(hides && hidden.evasion == Evasion::Silent) {
                events.push((day, Event::Snapshot { shard, step, digest: state(u64::from(hides), step) }));
            }
            day += random.wait(rate);
        }
        let (mut bytes, mut previous) = (Vec::new(), NO_LINK);
        for (counter, (day, event)) in (0..).zip(events) {
            let record = Record { serial: serial.clone(), counter, time: milliseconds(day), previous, event };
            let signed: SignedRecord = record.sign(&key);
            previous = signed.link();
            bytes.extend(signed.encode());
        }
        Ok(bytes)
    }
}
