//! A draw that another command goes on from: read, and derived again from register and heads.

use std::path::PathBuf;

use tiebreak_monitor::beacon::Verified;
use tiebreak_monitor::closed::ClosedLogs;
use tiebreak_monitor::draw::{DRAW_MAX, DeclaredRun, Draw};
use tiebreak_monitor::register::history::Register;
use tiebreak_monitor::snapshot::record::Serial;
use tiebreak_record::commit::digest::Digest;
use tiebreak_run::run::{RunError, disk};

use super::beacon::{self, ChainArgs};
use super::registry::{read, read_closed};
use crate::cli::args::key;
use crate::cli::view::report::{Exit, Failure, named};

/// The draw that a command reads, with what it follows from.
#[derive(clap::Args)]
pub struct DrawArgs {
    /// Draw of `tiebreak monitor draw`, which is derived again.
    #[arg(long, value_name = "FILE", requires_all = ["register", "closed"])]
    pub draw: Option<PathBuf>,
    /// Register of chips that the draw is from.
    #[arg(long, value_name = "FILE", requires = "draw")]
    register: Option<PathBuf>,
    /// Public key of the registrar: a file, or the key's text.
    #[arg(long, value_name = "KEY", requires = "register")]
    registrar: Option<String>,
    /// Heads of the chips' logs, published before the draw.
    #[arg(long, value_name = "FILE", requires = "draw")]
    closed: Option<PathBuf>,
    #[command(flatten)]
    chain: ChainArgs,
}

/// The chips that a draw is over and those that it drew, of one owner or of all.
pub struct Chips<'a> {
    /// The owner, if the statement is about one of several.
    pub owner: Option<&'a str>,
    /// The number of monitored chips.
    pub monitored: u64,
    /// The drawn ones, in the order of the draw.
    pub drawn: Vec<&'a Serial>,
}

/// A draw that follows from its inputs.
pub struct Drawn {
    /// The draw.
    pub draw: Draw,
    /// The heads of the logs.
    pub closed: ClosedLogs,
    /// The register as it was when chips were drawn.
    register: Register,
    /// True if the register's signature was checked.
    pub registered: bool,
    /// The round of drand that the seed comes from, if its signature was checked.
    pub beacon: Option<Verified>,
}

impl DrawArgs {
    /// The draw, if one is given.
    ///
    /// # Errors
    /// If a file is malformed, the draw does not follow from register and heads, or its round of drand has another signature.
    pub fn read(&self) -> Result<Option<Drawn>, Failure> {
        let (Some(path), Some(register), Some(closed)) = (&self.draw, &self.register, &self.closed) else {
            self.chain.used(&self.chain.known()?, None)?;
            return Ok(None);
        };
        let key = self.registrar.as_deref().map(key::read_public).transpose()?;
        let (register, closed) = (read(register, key.as_ref())?, read_closed(closed)?);
        let malformed = |error| RunError::malformed(path, error);
        let draw = Draw::from_text(&disk::read_text(path, DRAW_MAX).map_err(named)?).map_err(malformed)?;
        if let Some(why) = draw.check(&register, &closed).map_err(malformed)? {
            return Err(Failure::new(Exit::Diverges, format!("{}: {why}", path.display())));
        }
        let known = self.chain.known()?;
        let beacon =
            draw.signed(&known).map_err(|why| beacon::unverified(&path.display().to_string(), &why))?;
        self.chain.used(&known, beacon.as_ref())?;
        let then = register.first(draw.register.entries).map_err(malformed)?.unwrap_or(register);
        Ok(Some(Drawn { draw, closed, register: then, registered: key.is_some(), beacon }))
    }
}

impl Drawn {
    /// The chips of an owner at the time of the draw, or all. A draw of all chips draws those of an owner without preference
    /// too, whatever their number is.
    ///
    /// # Errors
    /// If the owner has no monitored chip then.
    pub fn chips<'a>(&'a self, owner: Option<&'a str>) -> Result<Chips<'a>, Failure> {
        let (draw, time) = (&self.draw, self.draw.question.time);
        let Some(name) = owner else {
            return Ok(Chips { owner, monitored: draw.monitored, drawn: draw.chips.iter().collect() });
        };
        let owned =
            |serial: &Serial| self.register.chip_at(serial, time).is_some_and(|chip| chip.owner == name);
        let monitored = self.register.monitored_at(time).into_iter().filter(|serial| owned(serial)).count();
        if monitored == 0 {
            let owners: Vec<String> = self.register.counts_at(time).owners.into_keys().collect();
            let why = format!("--owner {name}: no monitored chip was this owner's when chips were drawn");
            return Err(Failure::new(Exit::Usage, why).help(format!("the owners are {}", owners.join(", "))));
        }
        let drawn = draw.chips.iter().filter(|serial| owned(serial)).collect();
        Ok(Chips { owner, monitored: monitored as u64, drawn })
    }

    /// The head of a run that the draw is of; `None` if the draw is not of the run.
    pub fn head(&self, run: &Digest) -> Option<&DeclaredRun> {
        self.draw.question.runs.iter().find(|declared| declared.run == *run)
    }
}
