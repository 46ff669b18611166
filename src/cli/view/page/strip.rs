//! A run's steps as a strip: which of them were replayed, where the first difference is, and at which states a replay can begin.

use super::{Page, text};

/// The most columns of a strip; longer runs have several steps a column.
const COLUMNS: u32 = 500;

/// A strip: a run and the parts of it that were replayed.
pub struct Strip<'a> {
    /// The name that stands before it.
    pub name: &'a str,
    /// The steps of the run.
    pub steps: u32,
    /// The replayed steps, as ranges that are ascending and apart.
    pub replayed: &'a [(u32, u32)],
    /// The step in which the first difference was found.
    pub difference: Option<u32>,
    /// The steps after which a state is kept.
    pub checkpoints: &'a [u32],
}

/// The kind of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Column {
    Empty,
    Partly,
    Replayed,
}

/// The columns of a run with so many steps, each with its kind.
fn columns(steps: u32, replayed: &[(u32, u32)]) -> Vec<Column> {
    let count = steps.clamp(1, COLUMNS);
    let mut done = vec![0u64; count as usize];
    for &(first, last) in replayed.iter().filter(|(first, last)| first <= last && *last <= steps) {
        for column in place(first, steps, count)..=place(last, steps, count) {
            let (begin, end) = span(column, steps, count);
            let (from, to) = (begin.max(u64::from(first)), end.min(u64::from(last)));
            done[column as usize] += (to + 1).saturating_sub(from);
        }
    }
    let kind = |(column, &done): (usize, &u64)| {
        let (begin, end) = span(column as u32, steps, count);
        match done {
            0 => Column::Empty,
            done if done > end - begin => Column::Replayed,
            _ => Column::Partly,
        }
    };
    done.iter().enumerate().map(kind).collect()
}

/// The column of a step.
fn place(step: u32, steps: u32, count: u32) -> u32 {
    (u64::from(step.max(1) - 1) * u64::from(count) / u64::from(steps.max(1))) as u32
}

/// The first and the last step of a column.
fn span(column: u32, steps: u32, count: u32) -> (u64, u64) {
    let begin = |column: u64| (column * u64::from(steps)).div_ceil(u64::from(count)) + 1;
    (begin(u64::from(column)), begin(u64::from(column) + 1) - 1)
}

impl Page {
    /// A strip of a run's steps, for eyes and, in words, for a screen reader.
    pub fn strip(&mut self, strip: &Strip) {
        let count = strip.steps.clamp(1, COLUMNS);
        let (all, scale) = (columns(strip.steps, strip.replayed), 1000.0 / f64::from(count));
        let mut drawn = String::new();
        let mut from = 0;
        for part in all.chunk_by(|a, b| a == b) {
            let class = match part[0] {
                Column::Empty => None,
                Column::Partly => Some("partly"),
                Column::Replayed => Some("done"),
            };
            if let Some(class) = class {
                let (x, width) = (from as f64 * scale, part.len() as f64 * scale);
                drawn += &format!(
                    "<rect class=\"{class}\" x=\"{x:.2}\" y=\"0\" width=\"{width:.2}\" height=\"28\"/>"
                );
            }
            from += part.len();
        }
        if let Some(step) = strip.difference {
            let x = f64::from(place(step.min(strip.steps), strip.steps, count)) * scale;
            let width = scale.max(6.0);
            let x = x.min(1000.0 - width);
            drawn +=
                &format!("<rect class=\"differs\" x=\"{x:.2}\" y=\"0\" width=\"{width:.2}\" height=\"28\"/>");
        }
        let mut marks: Vec<u32> = strip
            .checkpoints
            .iter()
            .filter(|&&step| step <= strip.steps)
            .map(|&step| (u64::from(step) * u64::from(count) / u64::from(strip.steps.max(1))) as u32)
            .collect();
        marks.sort_unstable();
        marks.dedup();
        for mark in marks {
            let x = (f64::from(mark) * scale).clamp(1.0, 999.0);
            drawn += &format!("<path class=\"kept\" d=\"M{x:.2} 31V40\"/>");
        }
        let replayed: u64 =
            strip.replayed.iter().map(|&(first, last)| u64::from(last) + 1 - u64::from(first)).sum();
        let differs =
            strip.difference.map_or(String::new(), |step| format!(", the first difference in step {step}"));
        let said = format!("{}: {replayed} of {} steps replayed{differs}", strip.name, strip.steps);
        self.push(&format!(
            "<figure><figcaption>{}</figcaption><svg role=\"img\" aria-label=\"{}\" viewBox=\"0 0 1000 40\" preserveAspectRatio=\"none\">\
             <rect class=\"ground\" x=\"0\" y=\"0\" width=\"1000\" height=\"28\"/>{drawn}</svg>\
             <div class=\"ends\"><span>step 1</span><span>step {}</span></div></figure>\n",
            text(&said),
            text(&said),
            strip.steps,
        ));
    }

    /// The key to the colours of strips.
    pub fn legend(&mut self, steps: u32, differs: bool, kept: bool) {
        let mut items = vec![("done", "replayed, bit for bit as committed")];
        if steps > COLUMNS {
            items.push(("partly", "some of these steps replayed"));
        }
        items.push(("ground", "not replayed"));
        if differs {
            items.push(("differs", "first difference"));
        }
        if kept {
            items.push(("kept", "state from which a replay begins"));
        }
        let items: String = items
            .iter()
            .map(|(class, what)| format!("<span><i class=\"{class}\"></i>{what}</span>"))
            .collect();
        self.push(&format!("<p class=\"legend\">{items}</p>\n"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Column::*;

    #[test]
    fn a_column_is_as_much_replayed_as_its_steps_are() {
        assert_eq!(columns(4, &[(1, 1), (3, 4)]), [Replayed, Empty, Replayed, Replayed]);
        assert_eq!(columns(1, &[]), [Empty]);
        // Two steps a column.
        let many = columns(2 * COLUMNS, &[(1, 3), (2 * COLUMNS, 2 * COLUMNS)]);
        assert_eq!(
            (many[0], many[1], many[2], many[COLUMNS as usize - 1]),
            (Replayed, Partly, Empty, Partly)
        );
        // Every step is in one column, and the columns are as many as can be seen.
        for steps in [1, 499, 500, 501, 777, 1_000_003, u32::MAX] {
            let all = columns(steps, &[(1, steps)]);
            assert!(all.len() <= COLUMNS as usize && all.iter().all(|c| *c == Replayed), "{steps}");
            let (count, last) =
                (steps.min(COLUMNS), span(steps.min(COLUMNS) - 1, steps, steps.min(COLUMNS)).1);
            assert_eq!(last, u64::from(steps));
            for step in [1, steps / 2 + 1, steps] {
                let (begin, end) = span(place(step, steps, count), steps, count);
                assert!((begin..=end).contains(&u64::from(step)), "{step} of {steps}");
            }
        }
        // Ranges beyond the run, which a stranger's report may have, draw nothing.
        assert_eq!(columns(3, &[(2, 9)]), [Empty; 3]);
    }
}
