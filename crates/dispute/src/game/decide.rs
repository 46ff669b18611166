//! The end of a game: the element that differs, and its decision.

use super::breach::{Basis, Breach};
use super::duel::Duel;
use super::element::{self, LoggedTotal};
use super::judge::{self, Evidence};
use super::message::{Answer, Field, Fold, Need, Subject, Tree};
use super::rules::{Fault, Rules, scalar_digest};
use super::search::Join;
use super::stage::{Folded, Next, Stage, Walk, short};

const NO_ELEMENT: Next = Next::Impossible("an element is decided before one is in dispute");

impl Duel {
    /// Decides a differing element: the next question, or the verdict.
    pub fn element(&mut self, rules: &Rules, subject: Subject, element: usize, claimed: [u32; 2]) -> Next {
        match subject {
            Subject::Batch { .. } | Subject::Row { .. } => self.ask(rules, Need::All, None),
            Subject::Node { .. } | Subject::Pass { .. } => {
                let Some((graph, node)) = rules.node(subject) else { return NO_ELEMENT };
                let Some(fold) = element::fold_of(graph, node, element, claimed[0]) else {
                    return self.ask(rules, Need::All, None);
                };
                if let Fold::Rank { .. } = fold {
                    let len = graph.tensor(graph.nodes[node].output).len() as u64;
                    let outside: Vec<usize> =
                        (0..2).filter(|&side| u64::from(claimed[side]) >= len).collect();
                    if !outside.is_empty() {
                        return self.lost(&outside, Breach::Position);
                    }
                }
                if matches!(fold, Fold::Count | Fold::Sums { .. }) {
                    let frame = element::Frame { terms: judge::terms(graph, node), words: Vec::new() };
                    return self.framed(rules, Folded { fold, frame, total: None });
                }
                self.ask(rules, Need::Frame { fold }, None)
            }
        }
    }

    /// Asks for operands: the first side, then the other. Only the trainer is asked to show a rounding.
    pub fn ask(&mut self, rules: &Rules, need: Need, claims: Option<[Vec<u8>; 2]>) -> Next {
        let trainer = usize::from(self.sides[1].party == 0);
        // The owner of a rounding has to show it, so nobody else is asked.
        let rounding = self.is_rounding(rules, need);
        self.go(Stage::Evidence {
            need,
            asked: if rounding { trainer } else { 0 },
            declined: rounding,
            claims,
        })
    }

    /// True if the need is a decision of the rounding log.
    fn is_rounding(&self, rules: &Rules, need: Need) -> bool {
        let logged = self.disputed.as_ref().is_some_and(|d| judge::logged(rules, d.subject).is_some());
        logged && matches!(need, Need::All | Need::Decision)
    }

    /// The value of the disputed element is `word`: decides who loses.
    fn judged(&mut self, rules: &Rules, word: u32, by: Basis) -> Next {
        let Some(disputed) = self.disputed.clone() else { return NO_ELEMENT };
        let wrong = |side: &usize| match rules.checks(Fault::Blame) {
            true => !disputed.agrees(*side, word),
            false => *side == 0,
        };
        let wrong: Vec<usize> = (0..2).filter(wrong).collect();
        self.found.push(format!("the referee computes {word:08x}, {by}"));
        let (subject, element) = (disputed.subject, disputed.element);
        self.lost(&wrong, Breach::Element { subject, tensor: rules.describe(subject), element, word, by })
    }

    /// A fold's frame is known: the parties' values of its root.
    fn framed(&mut self, rules: &Rules, folded: Folded) -> Next {
        let Some(disputed) = self.disputed.clone() else { return NO_ELEMENT };
        let fold = folded.fold;
        let terms = folded.frame.terms;
        self.found.push(format!("element {} has {terms} terms", disputed.element));
        self.folded = Some(folded);
        match fold {
            Fold::Segment if terms == 0 => self.judged(rules, 0, Basis::NoRows),
            Fold::Segment => {
                let values = [0, 1].map(|side: usize| disputed.claimed(side).to_le_bytes().to_vec());
                self.terms(rules, values)
            }
            Fold::Count => {
                let values =
                    [0, 1].map(|side: usize| u64::from(disputed.claimed(side)).to_le_bytes().to_vec());
                self.terms(rules, values)
            }
            // Absmaxes are searched only after the total.
            Fold::Product | Fold::Rank { .. } | Fold::Sums { .. } | Fold::Absmax { .. } => {
                self.go(Stage::Total)
            }
        }
    }

    /// The search among an element's terms, whose totals differ.
    fn terms(&mut self, rules: &Rules, values: [Vec<u8>; 2]) -> Next {
        let (subject, element) = self.place();
        let Some(Folded { fold, frame, .. }) = self.folded.clone() else { return NO_ELEMENT };
        let tree = Tree::Terms { subject, element, fold };
        self.enter(rules, Walk { tree, first: 0, count: frame.terms, total: frame.terms, values })
    }

    /// Both sides have given the totals of an element's terms.
    pub fn total(&mut self, rules: &Rules, values: [Vec<u8>; 2]) -> Next {
        let (Some(disputed), Some(folded)) = (self.disputed.clone(), self.folded.clone()) else {
            return NO_ELEMENT;
        };
        let Some((graph, node)) = rules.node(disputed.subject) else { return NO_ELEMENT };
        let logged = matches!(folded.fold, Fold::Sums { .. });
        let parsed = [0, 1].map(|side: usize| {
            let total = LoggedTotal::of(graph, node, disputed.element, &values[side]);
            total.filter(|_| logged)
        });
        let right = |side: usize| match logged {
            true => parsed[side].is_some(),
            false => values[side].len() == Join::Terms(folded.fold).bytes(),
        };
        let odd: Vec<usize> = (0..2).filter(|&side| !right(side)).collect();
        if !odd.is_empty() {
            return self.lost(&odd, Breach::TotalSize);
        }
        if let [Some(first), Some(second)] = &parsed {
            return self.logged_totals(rules, folded, [first, second], &values[0]);
        }
        if let Fold::Rank { .. } = folded.fold {
            // The first side claims that this position has this rank; the second side claims that another position has it.
            let rank = (disputed.element as u64).to_le_bytes();
            let other = |side: usize| (values[side] == rank) != (side == 0);
            if let Some(lost) = self.contradicted(other, Breach::Rank) {
                return lost;
            }
            return self.terms(rules, values);
        }
        let word =
            |side: usize| element::total_word(graph, node, disputed.element, &folded.frame, &values[side]);
        let other = |side: usize| word(side).is_none_or(|word| !disputed.agrees(side, word));
        if let Some(lost) = self.contradicted(other, Breach::Total) {
            return lost;
        }
        self.terms(rules, values)
    }

    /// Both sides have given the totals of a logged product's element: its absmaxes, in their order, then its sums. A difference
    /// is searched; if there is none, the trainer shows its decision.
    fn logged_totals(
        &mut self,
        rules: &Rules,
        folded: Folded,
        totals: [&LoggedTotal; 2],
        total: &[u8],
    ) -> Next {
        let Folded { fold, frame, .. } = folded;
        let [first, second] = totals;
        let count = first.absmaxes.len();
        let differs = (0..count).find(|&i| first.absmaxes[i] != second.absmaxes[i]);
        let known = differs.unwrap_or(count);
        let frame = element::Frame { words: first.absmaxes[..known].to_vec(), ..frame };
        if let Some(number) = differs {
            self.found.push(format!("absmax {number} of the element's row or column differs"));
            self.folded = Some(Folded { fold: Fold::Absmax { number: number as u8 }, frame, total: None });
            return self.terms(rules, totals.map(|total| total.absmaxes[number].to_le_bytes().to_vec()));
        }
        if first.sums != second.sums {
            self.folded = Some(Folded { fold, frame, total: None });
            return self.terms(rules, totals.map(|total| total.sums.to_vec()));
        }
        self.found.push("both say the same absmaxes and sums of integers".into());
        self.folded = Some(Folded { fold, frame, total: Some(total.to_vec()) });
        self.ask(rules, Need::Decision, None)
    }

    /// Operands arrived, or the side did not supply them.
    pub fn evidence(
        &mut self,
        rules: &mut Rules,
        answer: Option<Answer>,
        need: Need,
        (asked, declined): (usize, bool),
        claims: Option<&[Vec<u8>; 2]>,
    ) -> Next {
        let Some(disputed) = self.disputed.clone() else { return NO_ELEMENT };
        let shown = answer.map(|answer| {
            judge::evidence(rules, &self.sides[asked], &disputed, need, self.folded.as_ref(), answer)
        });
        let why = match shown {
            Some(Ok(evidence)) => return self.shown(rules, evidence, claims),
            Some(Err(why)) => why.to_string(),
            None => "it does not supply them".into(),
        };
        self.found.push(format!("operands by party {}: {why}", self.sides[asked].party));
        if self.is_rounding(rules, need) {
            return self.lost(&[asked], Breach::HiddenRounding);
        }
        if declined {
            return self.lost(&[0, 1], Breach::NoOperands);
        }
        self.go(Stage::Evidence { need, asked: 1 - asked, declined: true, claims: claims.cloned() })
    }

    fn shown(&mut self, rules: &Rules, evidence: Evidence, claims: Option<&[Vec<u8>; 2]>) -> Next {
        match evidence {
            Evidence::Word(word) => self.judged(rules, word, Basis::Operands),
            Evidence::Frame(frame) => {
                let Stage::Evidence { need: Need::Frame { fold }, .. } = self.stage else {
                    return Next::Impossible("a frame is evidence that nobody was asked for");
                };
                self.framed(rules, Folded { fold, frame, total: None })
            }
            Evidence::Subtotal(value) => {
                let Some(claims) = claims else {
                    return Next::Impossible("a part of an element's terms is asked for that nobody claimed");
                };
                let wrong: Vec<usize> = (0..2).filter(|&side| claims[side] != value).collect();
                self.found.push(format!("the referee computes {} for these terms", short(&value)));
                self.lost(&wrong, Breach::Subtotal)
            }
            Evidence::Undefined { operator } => {
                self.found.push(format!("{operator} is not defined for operands that both committed to"));
                self.lost(&[0, 1], Breach::Undefined { operator })
            }
            Evidence::Sample { operator } => {
                self.found.push(format!("{operator} is not defined for a number of the receipt's sample"));
                match self.sides.iter().position(|side| side.party == 0) {
                    Some(signer) => self.lost(&[signer], Breach::Undefined { operator }),
                    None => Next::Sample(operator),
                }
            }
            Evidence::Rounding(rounding) => self.rounding(rules, rounding),
        }
    }

    /// A logged product's element was judged.
    fn rounding(&mut self, rules: &Rules, shown: judge::RoundedElement) -> Next {
        let Some(disputed) = self.disputed.clone() else { return NO_ELEMENT };
        let trainer = usize::from(self.sides[1].party == 0);
        let challenger = 1 - trainer;
        let (claimed, other) = (disputed.claimed(trainer), disputed.claimed(challenger));
        let nearest = shown.leeway.nearest;
        self.found.push(shown.leeway.to_string());
        if !shown.legal(claimed) {
            return self.lost(&[trainer], Breach::Rounding(shown.leeway));
        }
        match shown.logged {
            Some(word) => self.judged(rules, word, Basis::Log),
            None if claimed == nearest => self.judged(rules, nearest, Basis::Nearest),
            None if other != nearest => self.lost(&[challenger], Breach::NotNearest),
            None => Next::IncompleteLog(shown.leeway),
        }
    }

    /// The outputs that a field is made of arrived, or the side did not supply them.
    pub fn binding(
        &mut self,
        rules: &mut Rules,
        answer: Option<Answer>,
        (step, field): (u32, Field),
        (asked, declined): (usize, bool),
        claims: Option<&[Vec<u8>; 2]>,
    ) -> Next {
        let implied = answer.map(|answer| judge::implied(rules, &self.sides[asked], field, answer));
        let why = match implied {
            Some(Ok(implied)) => {
                let differs = |side: usize| match (field, self.sides[side].step()) {
                    (_, None) => false,
                    (Field::Gradient { .. }, _) => claims.is_some_and(|claims| claims[side] != implied.0),
                    (Field::State, Some(record)) => record.state != implied,
                    (Field::Clip, Some(record)) => scalar_digest(record.clip) != implied,
                    (Field::Loss, Some(record)) => scalar_digest(record.loss) != implied,
                };
                let wrong: Vec<usize> = (0..2).filter(|&side| differs(side)).collect();
                self.found.push(format!(
                    "the operators give another {} than {} of the records says",
                    field.name(),
                    wrong.len()
                ));
                return self.lost(&wrong, Breach::Field { step, field });
            }
            Some(Err(why)) => why.to_string(),
            None => "it does not supply them".into(),
        };
        self.found.push(format!("outputs by party {}: {why}", self.sides[asked].party));
        if declined {
            return self.lost(&[0, 1], Breach::NoOutputs);
        }
        let claims = claims.cloned();
        self.go(Stage::Binding { step, field, asked: 1 - asked, declined: true, claims })
    }
}
