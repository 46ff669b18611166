//! Replays the segments of a plan, one on each engine at a time. Findings are taken in the plan's order, so that the number of
//! engines changes no report.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Instant;

use super::checks::Checked;
use super::ending;
use super::localise::Difference;
use super::plan::{ReplayPlan, memory_to_confirm};
use super::progress::Progress;
use super::replay::same_log;
use super::report::{AuditError, Found, Report};
use super::rounding;
use tiebreak_contract::program::step::MicroBatch;
use tiebreak_engine::EngineError;
use tiebreak_engine::session::{KeptState, Session};
use tiebreak_record::commit::record::StepRecord;
use tiebreak_run::observers::choices::Choices;
use tiebreak_run::observers::tally::Tally;
use tiebreak_run::run::dir::Run;
use tiebreak_run::run::states;
use tiebreak_run::step::{CommittedStep, StepError, replayed_step};

/// The most bytes of counts that wait for segments before theirs. A trainer chooses how many decisions are counted.
const WAITING_MAX: u64 = 256 << 20;

/// A replay, which all jobs carry out together.
#[derive(Clone, Copy)]
pub struct Replay<'a> {
    pub run: &'a Run,
    pub native: bool,
    pub checked: &'a Checked,
    /// The time at which the audit began.
    pub begun: Instant,
    /// The time to stop at, if the auditor set a limit.
    pub end: Option<Instant>,
}

/// A job's news about a segment of the plan.
enum News {
    /// The state before this step is loaded.
    Begun(u32),
    /// A step was replayed; its record may differ.
    Step { step: u32, tally: Box<Tally>, same: bool },
    /// The first step that a correction takes back was replayed: what is checked thereby, or what is not.
    TakenBack(Result<String, String>),
    /// The segment has ended.
    End(Result<End, AuditError>),
}

/// The end of a segment's replay.
enum End {
    /// All its steps were replayed, and none differs.
    Whole,
    /// The auditor's time ended before this step was replayed.
    OutOfTime(u32),
    /// Somebody asked for the end before this step was replayed.
    Asked(u32),
    /// A segment before this one differs.
    Needless,
    Found(Box<Found>),
}

/// The engines of an audit in words.
///
/// # Errors
/// If there is none.
pub fn described(sessions: &[Session]) -> Result<String, AuditError> {
    match sessions {
        [] => Err(AuditError::Limit("an audit needs an engine".into())),
        [one] => Ok(one.engine().describe()),
        [first, ..] => Ok(format!("{} x {}", sessions.len(), first.engine().describe())),
    }
}

impl Replay<'_> {
    /// Replays the segments of a plan, and notes in the report which steps were. Returns the findings about the first difference,
    /// if there is one.
    pub fn segments(
        self,
        sessions: Vec<Session>,
        plan: &ReplayPlan,
        report: &mut Report,
        progress: &mut dyn Progress,
    ) -> Result<Option<Found>, AuditError> {
        // The next segment that nobody replays yet, and the first that differs.
        let (next, differs) = (AtomicUsize::new(plan.done), AtomicUsize::new(usize::MAX));
        let (queue, asked) = (Queue::default(), AtomicBool::new(false));
        let (confirming, others) = (Mutex::new(()), plan.memory.saturating_mul(sessions.len() as u64 - 1));
        thread::scope(|scope| {
            let (sender, news) = channel();
            for mut session in sessions {
                session.stop_at(self.end);
                let (engine, sender) = (session.engine().describe(), sender.clone());
                let (next, differs, queue, asked, confirming) =
                    (&next, &differs, &queue, &asked, &confirming);
                let job = Job {
                    replay: self,
                    session,
                    engine,
                    number: 0,
                    differs,
                    queue,
                    asked,
                    confirming,
                    others,
                };
                scope.spawn(move || job.work(plan, next, &sender));
            }
            drop(sender);
            let found = self.in_order(&news, (&queue, &asked), plan, report, progress);
            queue.front(usize::MAX);
            found
        })
    }

    /// Takes the news of each segment after those of all segments before.
    fn in_order(
        self,
        news: &Receiver<(usize, News)>,
        (queue, asked): (&Queue, &AtomicBool),
        plan: &ReplayPlan,
        report: &mut Report,
        progress: &mut dyn Progress,
    ) -> Result<Option<Found>, AuditError> {
        let mut waiting: BTreeMap<usize, VecDeque<News>> = BTreeMap::new();
        let (mut done, mut segment, mut taken_back) = (plan.steps_done(), plan.done, false);
        report.replayed.extend(&plan.segments[..plan.done]);
        queue.front(segment);
        for (number, news) in news {
            if let News::Step { step, .. } = news {
                done += 1;
                progress.step(step, done, plan.steps());
                asked.fetch_or(progress.is_asked_to_stop(), SeqCst);
            }
            waiting.entry(number).or_default().push_back(news);
            while let Some(news) = waiting.get_mut(&segment).and_then(VecDeque::pop_front) {
                let matches = matches!(news, News::End(Ok(End::Whole)));
                match &news {
                    News::Begun(_) => {}
                    News::TakenBack(_) => taken_back = true,
                    News::Step { tally, .. } => queue.leave(bytes_of(tally)),
                    News::End(_) => {
                        segment += 1;
                        queue.front(segment);
                    }
                }
                if let Some(found) = self.note(news, report)? {
                    return Ok(Some(found));
                }
                if let Some(&(next, _)) = plan.segments.get(segment).filter(|_| matches) {
                    progress.segment(&mut || self.so_far(report, next));
                }
            }
        }
        if let Some(correction) = self.checked.corrections.first().filter(|_| !taken_back) {
            let step = correction.step;
            report.not_checked.push(format!(
                "which record of step {step} is right: no state before it was at hand, or roundings are logged"
            ));
        }
        Ok(None)
    }

    /// The report of the audit if it ended before the step `next`.
    fn so_far(self, report: &Report, next: u32) -> Report {
        let mut report = report.clone();
        report
            .not_checked
            .push(format!("steps from {next} of the plan: the audit had not replayed them yet"));
        ending::end(&mut report, self.run, self.checked, self.native);
        report.seconds = self.begun.elapsed().as_secs_f64();
        report
    }

    /// The first step that a correction takes back, if it can be replayed. The statistics of a logged step need its log, and a correction
    /// has none.
    fn taken_back(self) -> Option<u32> {
        let first = self.checked.corrections.first()?;
        self.run.job().rounding.is_none().then_some(first.step)
    }

    /// Notes a job's news in the report. Returns the findings about a difference, if there is one.
    fn note(self, news: News, report: &mut Report) -> Result<Option<Found>, AuditError> {
        match news {
            News::Begun(first) => report.replayed.push((first, first - 1)),
            News::Step { step, tally, same } => {
                if let (Some(all), Some(rounding)) = (&mut report.rounding, &self.run.job().rounding) {
                    all.add(step, &tally, rounding.accumulation());
                }
                if let Some(replayed) = report.replayed.last_mut().filter(|_| same) {
                    replayed.1 = step;
                }
            }
            News::TakenBack(Ok(line)) => report.checked.push(line),
            News::TakenBack(Err(line)) => report.not_checked.push(line),
            News::End(end) => match end? {
                End::Whole | End::Needless => {}
                End::OutOfTime(step) => {
                    let why = format!("steps from {step} of the plan: --max-time was reached");
                    report.not_checked.push(why);
                }
                End::Asked(step) => {
                    report
                        .not_checked
                        .push(format!("steps from {step} of the plan: the audit was asked to stop"));
                }
                End::Found(found) => return Ok(Some(*found)),
            },
        }
        Ok(None)
    }
}

/// About the bytes of a step's counts.
fn bytes_of(tally: &Tally) -> u64 {
    16 * tally.taken() + (tally.products.len() * size_of::<Choices>()) as u64
}

/// The counts that wait for segments before theirs.
#[derive(Default)]
struct Queue {
    /// The segment whose news are taken at once, and the bytes that wait.
    state: Mutex<(usize, u64)>,
    changed: Condvar,
}

impl Queue {
    fn locked(&self) -> MutexGuard<'_, (usize, u64)> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until there is room for the counts of a segment. The segments before it have jobs that do not wait for it.
    fn enter(&self, segment: usize, bytes: u64) {
        let full =
            |state: &mut (usize, u64)| state.0 < segment && state.1.saturating_add(bytes) > WAITING_MAX;
        let state = self.changed.wait_while(self.locked(), full);
        state.unwrap_or_else(PoisonError::into_inner).1 += bytes;
    }

    fn leave(&self, bytes: u64) {
        self.locked().1 -= bytes;
        self.changed.notify_all();
    }

    fn front(&self, segment: usize) {
        self.locked().0 = segment;
        self.changed.notify_all();
    }
}

/// Lets nobody wait for a job that panics.
struct Unblock<'a>(&'a Queue);

impl Drop for Unblock<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.front(usize::MAX);
        }
    }
}

/// One engine, which replays segment after segment.
struct Job<'a, 'e> {
    replay: Replay<'a>,
    session: Session<'e>,
    /// The engine's name.
    engine: String,
    /// The segment's number in the plan.
    number: usize,
    /// The first segment that differs, as far as all jobs know.
    differs: &'a AtomicUsize,
    queue: &'a Queue,
    /// True once somebody asks for the end.
    asked: &'a AtomicBool,
    /// Held by the job that confirms a difference.
    confirming: &'a Mutex<()>,
    /// Bytes that the other jobs' replays need meanwhile.
    others: u64,
}

impl<'a> Job<'a, '_> {
    /// True if an earlier segment differs, so that nobody needs this one.
    fn is_needless(&self) -> bool {
        self.differs.load(SeqCst) < self.number
    }

    /// Waits until no other job confirms a difference; `None` if nobody needs this one's any more. Refuses a confirmation by the scalar
    /// reference that does not fit into the auditor's memory.
    fn can_confirm(&self, step: u32) -> Result<Option<MutexGuard<'a, ()>>, AuditError> {
        let run = self.replay.run;
        let alone = self.confirming.lock().unwrap_or_else(PoisonError::into_inner);
        if self.is_needless() {
            return Ok(None);
        }
        let needed = memory_to_confirm(run, self.session.engine().recomputes()).saturating_add(self.others);
        let what = format!("a step that differs, step {step}, and its confirmation by the scalar reference");
        run.within_memory(&what, needed)?;
        Ok(Some(alone))
    }

    /// The bytes of the state before a step. The record before commits them: where this machine changed them, nobody is accused.
    fn bytes_before(&mut self, step: u32, before: KeptState) -> Result<Vec<Vec<u8>>, AuditError> {
        let Replay { run, checked, .. } = self.replay;
        let before = self.session.kept_bytes(before)?;
        states::check(run, &checked.transcript.records, step - 1, &before).map_err(|_| {
            AuditError::Limit(format!(
                "step {step} is not judged: this machine changed the state before it, in memory or in the folder of --offload; \
                 audit on another machine"
            ))
        })?;
        Ok(before)
    }
}

impl Job<'_, '_> {
    /// Replays segments until none is left, or one does not end well.
    fn work(mut self, plan: &ReplayPlan, next: &AtomicUsize, news: &Sender<(usize, News)>) {
        let _unblock = Unblock(self.queue);
        // A plan without steps: the correction takes back the first one.
        let first = self.replay.taken_back() == Some(1) && self.replay.checked.checkpoints.contains(&0);
        if plan.segments.is_empty() && first && next.fetch_add(1, SeqCst) == 0 {
            let end = self.segment((1, 0), &mut |told| drop(news.send((0, told))));
            drop(news.send((0, News::End(end))));
            return;
        }
        loop {
            self.number = next.fetch_add(1, SeqCst);
            let Some(&segment) = plan.segments.get(self.number) else { return };
            let number = self.number;
            // Nobody listens any more once a difference is noted.
            let end = self.segment(segment, &mut |told| drop(news.send((number, told))));
            let goes_on = matches!(end, Ok(End::Whole));
            if end.is_err() {
                self.nothing_behind_counts();
            }
            drop(news.send((number, News::End(end))));
            if !goes_on {
                return;
            }
        }
    }

    /// Tells the other jobs that the plan ends with this segment.
    fn nothing_behind_counts(&self) {
        self.differs.fetch_min(self.number, SeqCst);
    }

    /// Replays one segment.
    fn segment(&mut self, (first, last): (u32, u32), tell: &mut dyn FnMut(News)) -> Result<End, AuditError> {
        let Replay { run, checked, end, .. } = self.replay;
        if self.is_needless() {
            return Ok(End::Needless);
        }
        let mut dataset = run.dataset()?;
        let records = &checked.transcript.records;
        states::settled(run, records, first - 1, || {
            self.session.load_visited(|load| -> Result<(), AuditError> {
                states::visit(run, records, first - 1, load)
            })
        })?;
        if first <= last {
            tell(News::Begun(first));
        }
        for step in first..=last {
            if self.is_needless() {
                return Ok(End::Needless);
            }
            if end.is_some_and(|end| Instant::now() > end) {
                return Ok(End::OutOfTime(step));
            }
            if self.asked.load(SeqCst) {
                return Ok(End::Asked(step));
            }
            let batch = run.batch(&mut dataset, step)?;
            let (tally, found) = match self.step(step, &batch) {
                Err(AuditError::Engine(EngineError::OutOfTime)) => return Ok(End::OutOfTime(step)),
                replayed => match replayed? {
                    Some(replayed) => replayed,
                    None => return Ok(End::Needless),
                },
            };
            self.queue.enter(self.number, bytes_of(&tally));
            tell(News::Step { step, tally: Box::new(tally), same: found.is_none() });
            if let Some(found) = found {
                return Ok(End::Found(Box::new(found)));
            }
        }
        if self.replay.taken_back() == Some(last + 1) {
            match self.step_taken_back(last + 1) {
                Err(AuditError::Engine(EngineError::OutOfTime)) => return Ok(End::OutOfTime(last + 1)),
                told => tell(News::TakenBack(told?)),
            }
        }
        Ok(End::Whole)
    }

    /// Replays the first step that a correction takes back, from the state before it, and says which of its two records comes out. Nobody
    /// is accused: the corrected run has an audit of its own.
    fn step_taken_back(&mut self, step: u32) -> Result<Result<String, String>, AuditError> {
        let Replay { run, checked, .. } = self.replay;
        let correction = checked.corrections.first().expect("a correction takes the step back");
        let batch = run.batch(&mut run.dataset()?, step)?;
        let before = self.session.keep_state()?;
        let mine = self.replayed(step, &batch, &before, &correction.old.record)?.0.record;
        Ok(if mine == correction.new.record {
            Ok(format!("step {step} comes out as the corrected run's record says, not as the other"))
        } else if mine == correction.old.record {
            Err(format!("why step {step} was corrected: it comes out as the record that was taken back"))
        } else {
            let why = "the corrected run's record of step";
            Err(format!("{why} {step}: here the step comes out as neither record says"))
        })
    }

    /// Replays one step. Returns the counts of its roundings, and the findings about a difference, if there is one; `None` if nobody needs
    /// them.
    fn step(
        &mut self,
        step: u32,
        batch: &[MicroBatch],
    ) -> Result<Option<(Tally, Option<Found>)>, AuditError> {
        let Replay { run, native, checked, .. } = self.replay;
        let theirs = checked.step(step)?;
        let before = self.session.keep_state()?;
        rounding::check_log(run, step, theirs)?;
        let (mine, tally) = self.replayed(step, batch, &before, theirs)?;
        same_log(run, &mine.record, theirs)?;
        let same = mine.record == *theirs;
        if same && (native || tally.first_illegal.is_none()) {
            return Ok(Some((tally, None)));
        }
        self.nothing_behind_counts();
        let found = |outcome| Found { outcome, verdict: None };
        if native {
            return Ok(Some((tally, Some(found(rounding::not_replicated(step, &mine.record, theirs))))));
        }
        // A decision may be about other operands than these if the records differ: one decision that an honest trainer's log
        // lacks would make later ones look wrong. If the records agree, all operands of the decisions agree.
        if let Some(illegal) = tally.first_illegal.as_ref().filter(|_| same) {
            let Some(_alone) = self.can_confirm(step)? else { return Ok(None) };
            let before = self.bytes_before(step, before)?;
            let found = self.difference(&before, batch, &mine).illegal(illegal)?;
            return Ok(Some((tally, Some(found))));
        }
        if mine.trace.is_none()
            && run.job().rounding.is_some()
            && rounding::may_lack_a_decision(&mine.record, theirs)
        {
            return Ok(Some((tally, Some(found(rounding::missing(step, &mine.record, theirs))))));
        }
        let Some(_alone) = self.can_confirm(step)? else { return Ok(None) };
        let before = self.bytes_before(step, before)?;
        let found = self.difference(&before, batch, &mine).localise()?;
        Ok(Some((tally, Some(found))))
    }

    /// A step's replay. Native products decide nothing but a match: any other outcome is that of exact products.
    fn replayed(
        &mut self,
        step: u32,
        batch: &[MicroBatch],
        before: &KeptState,
        theirs: &StepRecord,
    ) -> Result<(CommittedStep, Tally), AuditError> {
        let Replay { run, native, .. } = self.replay;
        if self.session.is_native() && !native {
            match replayed_step(run, &mut self.session, step, batch, true) {
                Ok((mine, tally)) if mine.record == *theirs && tally.illegal == 0 => {
                    return Ok((mine, tally));
                }
                Err(StepError::Engine(error @ EngineError::OutOfTime)) => return Err(error.into()),
                _ => {
                    self.session.compute_exactly()?;
                    self.session.restore(before)?;
                }
            }
        }
        Ok(replayed_step(run, &mut self.session, step, batch, !native)?)
    }

    /// The data needed to localise a difference. The engine frees idle memory first.
    fn difference<'a>(
        &'a mut self,
        before: &'a [Vec<u8>],
        batch: &'a [MicroBatch],
        mine: &'a CommittedStep,
    ) -> Difference<'a> {
        self.session.engine_mut().release();
        let Replay { run, checked, end, .. } = self.replay;
        let recomputes = self.session.engine().recomputes();
        Difference { run, checked, before, batch, mine, engine: &self.engine, recomputes, end }
    }
}
