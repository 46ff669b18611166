//! Curves of probabilities as a small picture that a phone shows too, in the page's own colours.

use super::{Page, text};

/// The picture's size and its margins left, right, above and below: about as many pixels as a phone has.
const SIZE: [f64; 2] = [360.0, 220.0];
const MARGINS: [f64; 4] = [38.0, 10.0, 22.0, 36.0];

/// A curve of probabilities.
pub struct Curve {
    /// The name in the legend.
    pub name: String,
    /// (x, probability), by ascending x.
    pub points: Vec<(f64, f64)>,
}

/// A picture of at most two curves, one point of which is marked.
pub struct Plot {
    /// The meaning of x.
    pub x: String,
    /// The meaning of the probability.
    pub y: String,
    /// The greatest x.
    pub most: f64,
    /// The curves.
    pub curves: Vec<Curve>,
    /// The marked point.
    pub mark: (f64, f64),
}

impl Plot {
    fn across(&self, x: f64) -> f64 {
        let [left, right, ..] = MARGINS;
        left + (SIZE[0] - left - right) * x / self.most.max(1.0)
    }

    fn svg(&self) -> String {
        let [left, right, above, below] = MARGINS;
        let (low, end) = (SIZE[1] - below, SIZE[0] - right);
        let up = |p: f64| low - (low - above) * p;
        let mut drawn = String::new();
        for tick in 0..=4 {
            let p = f64::from(tick) / 4.0;
            drawn += &format!(
                "<path class=\"grid\" d=\"M{left} {0:.1}H{end}\"/><text x=\"{1:.1}\" y=\"{2:.1}\" text-anchor=\"end\">{p}</text>",
                up(p),
                left - 5.0,
                up(p) + 4.0
            );
        }
        for tick in 0..=4 {
            let x = self.most * f64::from(tick) / 4.0;
            drawn += &format!(
                "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{x:.0}</text>",
                self.across(x),
                low + 14.0
            );
        }
        for (number, curve) in self.curves.iter().enumerate() {
            let points = curve.points.iter().map(|&(x, p)| format!("{:.1},{:.1}", self.across(x), up(p)));
            let points = points.collect::<Vec<_>>().join(" ");
            drawn += &format!("<polyline class=\"curve c{number}\" points=\"{points}\"/>");
        }
        let (x, p) = (self.across(self.mark.0), up(self.mark.1));
        drawn += &format!(
            "<path class=\"chosen\" d=\"M{x:.1} {low}V{p:.1}H{left}\"/><circle class=\"chosen\" cx=\"{x:.1}\" cy=\"{p:.1}\" r=\"4\"/>"
        );
        format!(
            "{drawn}<text x=\"{left}\" y=\"12\">{}</text><text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            text(&self.y),
            (left + end) / 2.0,
            SIZE[1] - 6.0,
            text(&self.x)
        )
    }
}

impl Page {
    /// A picture of curves with a sentence that says what it shows.
    pub fn plot(&mut self, plot: &Plot, said: &str) {
        let names: String = plot
            .curves
            .iter()
            .enumerate()
            .map(|(number, curve)| {
                format!("<span><i class=\"line c{number}\"></i>{}</span>", text(&curve.name))
            })
            .collect();
        self.push(&format!(
            "<figure class=\"drawing\"><figcaption>{0}</figcaption><svg role=\"img\" aria-label=\"{0}\" viewBox=\"0 0 {1} {2}\">{3}</svg></figure>\n\
             <p class=\"legend\">{names}<span><i class=\"line chosen\"></i>as planned</span></p>\n",
            text(said),
            SIZE[0],
            SIZE[1],
            plot.svg()
        ));
    }
}
