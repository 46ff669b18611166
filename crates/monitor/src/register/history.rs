//! The register as a history: entries in their order, what each of them may say, and the state of a chip at a date.

use std::collections::{BTreeMap, HashMap};

use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::keys::PublicKey;
use tiebreak_record::commit::named_head::NamedHead;
use tiebreak_record::commit::{Malformed, merkle};

use super::entry::{Change, Entry};
use crate::snapshot::record::Serial;

/// The most entries of a register.
pub const ENTRIES_MAX: usize = 1 << 22;
/// The most characters of a register's name.
pub const NAME_MAX: usize = 128;
/// The beginning of the origin line of a register's head.
const ORIGIN: &str = "tiebreak/chips/";

/// The register of chips.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Register {
    name: String,
    entries: Vec<Entry>,
    leaves: Vec<Digest>,
    /// The indices of each chip's entries.
    chips: BTreeMap<Serial, Vec<u32>>,
    /// The chip of each key that was ever registered.
    keys: HashMap<[u8; 32], Serial>,
}

/// A chip as the register has it at a date.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chip<'a> {
    /// The seconds since 1970 at which the chip entered.
    pub since: u64,
    /// The text of the key that signs the chip's log.
    pub key: &'a str,
    /// The kind of chip.
    pub model: &'a str,
    /// The owner.
    pub owner: &'a str,
    /// The place.
    pub site: &'a str,
    /// The reason why the chip is not monitored.
    pub exempt: Option<&'a str>,
}

/// The numbers of chips at a date.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Monitored chips.
    pub monitored: u64,
    /// Chips that are exempt from monitoring.
    pub exempt: u64,
    /// Chips that left and did not come back.
    pub gone: u64,
    /// Monitored and exempt chips of each owner.
    pub owners: BTreeMap<String, (u64, u64)>,
}

/// The reason why a register does not continue an earlier head of it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Rewritten {
    /// The head is of another register.
    #[error("the earlier head is of {earlier:?}, and this register is {now:?}")]
    OtherRegister {
        /// The origin of the earlier head.
        earlier: String,
        /// The origin of this register.
        now: String,
    },
    /// Entries are gone.
    #[error("the register had {earlier} entries, and now it has {now}: entries were removed")]
    Shorter {
        /// Entries under the earlier head.
        earlier: u64,
        /// Entries of this register.
        now: u64,
    },
    /// Entries were changed.
    #[error(
        "the first {entries} entries are not those of the earlier head: the register's history was rewritten"
    )]
    Changed {
        /// Entries under the earlier head.
        entries: u64,
    },
}

impl Rewritten {
    /// The stable name of the reason, for programs.
    pub fn kind(&self) -> &'static str {
        match self {
            Rewritten::OtherRegister { .. } => "other_register",
            Rewritten::Shorter { .. } => "shorter",
            Rewritten::Changed { .. } => "changed",
        }
    }
}

impl Register {
    /// A register without entries.
    ///
    /// # Errors
    /// If the name is empty, too long, or has a blank or a plus sign.
    pub fn new(name: &str) -> Result<Register, Malformed> {
        let fits = (1..=NAME_MAX).contains(&name.chars().count());
        if !fits || name.chars().any(|c| c.is_whitespace() || c.is_control() || c == '+') {
            let why = format!("{name:?}: 1 to {NAME_MAX} characters without blanks and '+' are wanted");
            return Err(Malformed::invalid("register name", why));
        }
        Ok(Register {
            name: name.to_string(),
            entries: Vec::new(),
            leaves: Vec::new(),
            chips: BTreeMap::new(),
            keys: HashMap::new(),
        })
    }

    /// The register's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// All entries, oldest first.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// The number of chips that the register ever had.
    pub fn chips(&self) -> usize {
        self.chips.len()
    }

    /// The origin line of this register's heads.
    pub fn origin(&self) -> String {
        format!("{ORIGIN}{}", self.name)
    }

    /// The name in an origin line of a register's head.
    pub(super) fn name_of(origin: &str) -> Option<&str> {
        origin.strip_prefix(ORIGIN)
    }

    /// The head over all entries.
    pub fn head(&self) -> NamedHead {
        let (size, root) = (self.leaves.len() as u64, merkle::root(&self.leaves));
        NamedHead { origin: self.origin(), size, root }
    }

    /// Adds an entry.
    ///
    /// # Errors
    /// If the entry contradicts the entries before it; the error names the entry.
    pub fn append(&mut self, entry: Entry) -> Result<(), Malformed> {
        let number = self.entries.len();
        let named =
            |why: String| Malformed::invalid("register", format!("entry {number} ({}): {why}", entry.said()));
        if number >= ENTRIES_MAX {
            return Err(Malformed::TooLarge { what: "register", limit: ENTRIES_MAX as u64 });
        }
        entry.check().map_err(|error| named(error.to_string()))?;
        if self.entries.last().is_some_and(|last| last.time > entry.time) {
            return Err(named("its date is before that of the entry before it".into()));
        }
        let there = self.chip_at(&entry.serial, entry.time).is_some();
        match (&entry.change, there) {
            (Change::Enter { .. }, true) => {
                return Err(named("the chip is in the register already".into()));
            }
            (Change::Enter { .. }, false) | (_, true) => {}
            (_, false) => {
                return Err(named(format!("the register does not have chip {} then", entry.serial)));
            }
        }
        if let Some(key) = entry.change.key().map_err(|error| named(error.to_string()))? {
            if let Some(other) = self.keys.get(&key.bytes()) {
                return Err(named(format!("its key is one of chip {other} already")));
            }
            self.keys.insert(key.bytes(), entry.serial.clone());
        }
        self.chips.entry(entry.serial.clone()).or_default().push(number as u32);
        self.leaves.push(entry.leaf());
        self.entries.push(entry);
        Ok(())
    }

    /// The entries of a chip, with their numbers.
    pub fn entries_of(&self, serial: &Serial) -> impl Iterator<Item = (usize, &Entry)> {
        let indices = self.chips.get(serial).map_or(&[][..], Vec::as_slice);
        indices.iter().map(|&index| (index as usize, &self.entries[index as usize]))
    }

    /// The chip at a time, in seconds since 1970; `None` if the register does not have the chip then.
    pub fn chip_at(&self, serial: &Serial, time: u64) -> Option<Chip<'_>> {
        let mut chip = None;
        for (_, entry) in self.entries_of(serial).take_while(|(_, entry)| entry.time <= time) {
            match (&entry.change, &mut chip) {
                (Change::Enter { key, model, owner, site, exempt }, chip) => {
                    let exempt = exempt.as_deref();
                    *chip = Some(Chip { since: entry.time, key, model, owner, site, exempt });
                }
                (Change::Transfer { owner, site }, Some(chip)) => (chip.owner, chip.site) = (owner, site),
                (Change::Key { key, .. }, Some(chip)) => chip.key = key,
                (Change::Leave { .. }, chip) => *chip = None,
                // An entry of a chip that is not there is never added.
                (_, None) => {}
            }
        }
        chip
    }

    /// The times at which a chip is monitored, in milliseconds since 1970: from the first to before the second of each, ascending. A
    /// chip that is there and not exempt is monitored to the end of time.
    pub fn monitored_times(&self, serial: &Serial) -> Vec<(u64, u64)> {
        let mut times: Vec<(u64, u64)> = Vec::new();
        for (_, entry) in self.entries_of(serial) {
            let time = entry.time.saturating_mul(1000);
            match &entry.change {
                Change::Enter { exempt: None, .. } => times.push((time, u64::MAX)),
                Change::Leave { .. } => times.iter_mut().for_each(|(_, end)| *end = time.min(*end)),
                _ => {}
            }
        }
        times
    }

    /// All chips at a time, by their serial numbers.
    pub fn chips_at(&self, time: u64) -> impl Iterator<Item = (&Serial, Chip<'_>)> {
        self.chips.keys().filter_map(move |serial| Some((serial, self.chip_at(serial, time)?)))
    }

    /// The serial numbers of the monitored chips at a time, ascending.
    pub fn monitored_at(&self, time: u64) -> Vec<&Serial> {
        let monitored = self.chips_at(time).filter(|(_, chip)| chip.exempt.is_none());
        monitored.map(|(serial, _)| serial).collect()
    }

    /// The keys that a chip ever had, with the times from which on each is the chip's, oldest first.
    pub fn keys_of(&self, serial: &Serial) -> Vec<(u64, PublicKey)> {
        let keys =
            self.entries_of(serial).filter_map(|(_, entry)| Some((entry.time, entry.change.key().ok()??)));
        keys.collect()
    }

    /// The numbers of chips at a time.
    pub fn counts_at(&self, time: u64) -> Counts {
        let mut counts = Counts::default();
        for (serial, indices) in &self.chips {
            let Some(chip) = self.chip_at(serial, time) else {
                counts.gone += u64::from(self.entries[indices[0] as usize].time <= time);
                continue;
            };
            let owner = counts.owners.entry(chip.owner.to_string()).or_default();
            match chip.exempt {
                None => (counts.monitored, owner.0) = (counts.monitored + 1, owner.0 + 1),
                Some(_) => (counts.exempt, owner.1) = (counts.exempt + 1, owner.1 + 1),
            }
        }
        counts
    }

    /// Checks that this register continues the one that an earlier head was of.
    ///
    /// # Errors
    /// If an entry under the earlier head is gone or was changed.
    pub fn check_extends(&self, earlier: &NamedHead) -> Result<(), Rewritten> {
        let now = self.leaves.len() as u64;
        if earlier.origin != self.origin() {
            return Err(Rewritten::OtherRegister { earlier: earlier.origin.clone(), now: self.origin() });
        }
        if earlier.size > now {
            return Err(Rewritten::Shorter { earlier: earlier.size, now });
        }
        if merkle::root(&self.leaves[..earlier.size as usize]) == earlier.root {
            return Ok(());
        }
        Err(Rewritten::Changed { entries: earlier.size })
    }

    /// The register as it was with so many entries; `None` if it has fewer.
    ///
    /// # Errors
    /// Never, unless an entry contradicts those before it, which no register has.
    pub fn first(&self, entries: u64) -> Result<Option<Register>, Malformed> {
        let Some(entries) = self.entries.get(..entries as usize) else { return Ok(None) };
        let mut register = Register::new(&self.name)?;
        entries.iter().try_for_each(|entry| register.append(entry.clone()))?;
        Ok(Some(register))
    }

    /// The number of the first entry that differs from an earlier copy of the register.
    pub fn first_difference(&self, earlier: &Register) -> Option<usize> {
        let differs = self.leaves.iter().zip(&earlier.leaves).position(|(now, then)| now != then);
        differs.or((earlier.leaves.len() > self.leaves.len()).then_some(self.leaves.len()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tiebreak_record::commit::keys::PrivateKey;

    fn serial(text: &str) -> Serial {
        Serial::new(text).unwrap()
    }

    fn key(seed: u8) -> String {
        PrivateKey::generate("chip", [seed; 32]).unwrap().public().to_text()
    }

    fn enter(time: u64, chip: &str, seed: u8, exempt: Option<&str>) -> Entry {
        let [model, owner, site] = ["h100", "Alice", "north"].map(String::from);
        let change = Change::Enter { key: key(seed), model, owner, site, exempt: exempt.map(String::from) };
        Entry { time, serial: serial(chip), change }
    }

    fn change(time: u64, chip: &str, change: Change) -> Entry {
        Entry { time, serial: serial(chip), change }
    }

    fn transfer(time: u64, chip: &str) -> Entry {
        change(time, chip, Change::Transfer { owner: "Bob".into(), site: "south".into() })
    }

    fn leave(time: u64, chip: &str) -> Entry {
        change(time, chip, Change::Leave { why: "broken".into() })
    }

    fn replace(time: u64, chip: &str, seed: u8) -> Entry {
        change(time, chip, Change::Key { key: key(seed), why: "repair".into() })
    }

    fn of(entries: &[Entry]) -> Register {
        let mut register = Register::new("example").unwrap();
        entries.iter().for_each(|entry| register.append(entry.clone()).unwrap());
        register
    }

    fn history() -> Vec<Entry> {
        vec![
            enter(10, "A", 1, None),
            enter(10, "B", 2, Some("a display")),
            enter(20, "C", 3, None),
            transfer(30, "A"),
            replace(40, "A", 4),
            leave(50, "C"),
            enter(60, "C", 5, None),
        ]
    }

    #[test]
    fn the_state_of_a_chip_follows_its_entries() {
        let register = of(&history());
        let at = |chip: &str, time: u64| register.chip_at(&serial(chip), time);
        assert_eq!(at("A", 9), None);
        assert_eq!(at("A", 29).unwrap().owner, "Alice");
        assert_eq!((at("A", 30).unwrap().owner, at("A", 30).unwrap().site), ("Bob", "south"));
        assert_eq!(at("A", 39).unwrap().key, key(1));
        assert_eq!(at("A", 40).unwrap().key, key(4));
        assert!(at("C", 49).is_some() && at("C", 50).is_none() && at("C", 60).unwrap().since == 60);
        let monitored =
            |time: u64| register.monitored_at(time).iter().map(|s| s.as_str()).collect::<String>();
        assert_eq!([5, 10, 20, 50, 60].map(monitored), ["", "A", "AC", "A", "AC"]);
        let counts = register.counts_at(55);
        assert_eq!((counts.monitored, counts.exempt, counts.gone), (1, 1, 1));
        assert_eq!(counts.owners, [("Alice".into(), (0, 1)), ("Bob".into(), (1, 0))].into());
        assert_eq!(register.counts_at(5), Counts::default());
        let keys: Vec<u64> = register.keys_of(&serial("A")).iter().map(|(time, _)| *time).collect();
        assert_eq!(keys, [10, 40]);
    }

    #[test]
    fn entries_that_contradict_earlier_ones_are_refused_by_their_number() {
        let mut register = of(&history());
        for (entry, why) in [
            (
                enter(70, "A", 9, None),
                "entry 7 (entry of A at 1970-01-01 00:01:10 UTC): the chip is in the register already",
            ),
            (transfer(70, "D"), "does not have chip D"),
            (transfer(59, "A"), "its date is before"),
            (enter(70, "D", 1, None), "one of chip A already"),
            (replace(70, "A", 1), "one of chip A already"),
            (leave(70, "D"), "does not have chip D"),
        ] {
            let error = register.append(entry).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
        assert_eq!(register, of(&history()));
    }

    #[test]
    fn a_rewritten_history_is_told() {
        let (entries, register) = (history(), of(&history()));
        for size in 0..=entries.len() {
            let earlier = of(&entries[..size]);
            register.check_extends(&earlier.head()).unwrap();
            assert_eq!(register.first_difference(&earlier), None);
            if size < entries.len() {
                let gone = earlier.check_extends(&register.head()).unwrap_err();
                assert_eq!(gone.kind(), "shorter");
                assert_eq!(earlier.first_difference(&register), Some(size));
            }
        }
        let mut other = entries;
        other[3] = transfer(31, "A");
        let other = of(&other);
        assert_eq!(other.check_extends(&register.head()).unwrap_err().kind(), "changed");
        assert_eq!(other.first_difference(&register), Some(3));
        other.check_extends(&of(&history()[..3]).head()).unwrap();
        let renamed = Register::new("another").unwrap();
        assert_eq!(renamed.check_extends(&register.head()).unwrap_err().kind(), "other_register");
    }

    #[test]
    fn names_are_those_that_a_head_can_carry() {
        for name in ["", "a b", "a+b", "a\nb", &"x".repeat(NAME_MAX + 1)] {
            assert!(Register::new(name).is_err(), "{name:?}");
        }
    }
}
