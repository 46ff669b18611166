//! Curves as an SVG picture: axes with ticks at round numbers, and a legend.

/// The picture's size, and the margins left, right, above and below, in pixels.
const SIZE: [f64; 2] = [860.0, 480.0];
const MARGINS: [f64; 4] = [78.0, 24.0, 40.0, 56.0];
/// About as many ticks an axis has.
const TICKS: f64 = 7.0;
/// Okabe and Ito's colours, which colour-blind people tell apart.
const COLOURS: [&str; 7] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000"];
/// The most points of a curve; longer ones are drawn as means of equal parts.
const POINTS_MAX: usize = 1500;

/// A curve.
pub struct Curve {
    /// The name in the legend.
    pub name: String,
    /// (x, y), by ascending x. Points that are not finite are gaps.
    pub points: Vec<(f64, f64)>,
    /// The number of its colour; curves of one run share it.
    pub colour: usize,
    /// True if it is drawn as dashes between dots.
    pub dashed: bool,
}

/// A picture of curves.
pub struct Chart<'a> {
    /// The title above it.
    pub title: &'a str,
    /// The meaning of x, with its unit.
    pub x: &'a str,
    /// The meaning of y.
    pub y: &'a str,
    /// The curves.
    pub curves: Vec<Curve>,
}

/// A chart of one quantity over steps.
pub fn over_steps(title: &str, quantity: &str, curves: Vec<Curve>) -> String {
    Chart { title, x: "step", y: quantity, curves }.svg()
}

/// An axis: the numbers at its ends, and the distance of its ticks.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Axis {
    low: f64,
    high: f64,
    step: f64,
}

impl Axis {
    /// From below the least of the values to above the greatest, at ticks.
    fn of(values: impl Iterator<Item = f64> + Clone) -> Axis {
        let finite = values.filter(|x| x.is_finite());
        let low = finite.clone().reduce(f64::min).unwrap_or(0.0);
        let high = finite.reduce(f64::max).unwrap_or(1.0);
        let span = if high > low { high - low } else { low.abs().max(1.0) };
        let power = 10f64.powf((span / TICKS).log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].map(|n| n * power).into_iter().find(|s| span / s <= TICKS);
        let step = step.unwrap_or(10.0 * power);
        // A quotient of two rounded numbers may miss the integer that it is.
        let (low, high) = ((low / step + 1e-9).floor() * step, (high / step - 1e-9).ceil() * step);
        Axis { low, high: if high > low { high } else { low + step }, step }
    }

    /// The part of the axis before a number, 0 to 1.
    fn part(&self, value: f64) -> f64 {
        (value - self.low) / (self.high - self.low)
    }

    fn ticks(&self) -> impl Iterator<Item = f64> + '_ {
        let count = ((self.high - self.low) / self.step).round() as u32;
        (0..=count).map(|i| self.low + f64::from(i) * self.step)
    }

    /// A tick's number with as many digits as the ticks' distance needs.
    fn label(&self, value: f64) -> String {
        if self.step < 1e-4 || self.high.abs().max(self.low.abs()) >= 1e7 {
            return format!("{value:.1e}");
        }
        let digits = (-self.step.log10().floor()).max(0.0) as usize;
        // -0 is the axis's own zero.
        format!("{:.digits$}", value + 0.0)
    }
}

impl Chart<'_> {
    /// The picture.
    pub fn svg(&self) -> String {
        let curves: Vec<Vec<(f64, f64)>> = self.curves.iter().map(|curve| thinned(&curve.points)).collect();
        let points = || curves.iter().flatten().filter(|(x, y)| x.is_finite() && y.is_finite());
        let (across, up) = (Axis::of(points().map(|p| p.0)), Axis::of(points().map(|p| p.1)));
        let [left, right, above, below] = MARGINS;
        let x = |value: f64| left + (SIZE[0] - left - right) * across.part(value);
        let y = |value: f64| SIZE[1] - below - (SIZE[1] - above - below) * up.part(value);
        let mut text = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {}\" font-family=\"sans-serif\" font-size=\"13\" fill=\"#222\">\n\
             <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n",
            SIZE[0], SIZE[1]
        );
        let line = |x1: f64, y1: f64, x2: f64, y2: f64, colour: &str| {
            format!("<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" stroke=\"{colour}\"/>")
        };
        let label = |x: f64, y: f64, anchor: &str, more: &str, words: &str| {
            format!(
                "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\"{more}>{}</text>\n",
                escaped(words)
            )
        };
        let (low, high) = (SIZE[1] - below, SIZE[0] - right);
        for tick in up.ticks() {
            text += &line(left, y(tick), high, y(tick), "#e4e4e4");
            text += &label(left - 8.0, y(tick) + 4.5, "end", "", &up.label(tick));
        }
        for tick in across.ticks() {
            text += &line(x(tick), low, x(tick), low + 5.0, "#444");
            text += &label(x(tick), low + 19.0, "middle", "", &across.label(tick));
        }
        text += &line(left, above, left, low, "#444");
        text += &line(left, low, high, low, "#444");
        let bold = " font-weight=\"bold\"";
        text += &label(left, above - 16.0, "start", bold, self.title);
        text += &label((left + high) / 2.0, SIZE[1] - 14.0, "middle", "", self.x);
        let turned = format!(" transform=\"rotate(-90 18 {:.1})\"", (above + low) / 2.0);
        text += &label(18.0, (above + low) / 2.0, "middle", &turned, self.y);
        for (curve, points) in self.curves.iter().zip(&curves) {
            text += &drawn(curve, points, &x, &y);
        }
        text + &self.legend(high) + "</svg>\n"
    }

    /// The names of the curves with their colours, at the top right.
    fn legend(&self, right: f64) -> String {
        let widest = self.curves.iter().map(|curve| curve.name.chars().count()).max().unwrap_or(0);
        let left = right - 48.0 - 7.2 * widest as f64;
        let tall = 19.0 * self.curves.len() as f64 + 8.0;
        let mut text = format!(
            "<rect x=\"{left:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{tall:.1}\" fill=\"white\" fill-opacity=\"0.85\" stroke=\"#ccc\"/>\n",
            MARGINS[2],
            right - left
        );
        for (i, curve) in self.curves.iter().enumerate() {
            let y = MARGINS[2] + 17.0 + 19.0 * i as f64;
            text += &format!(
                "<line x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\" stroke=\"{}\" stroke-width=\"2\"{}/><text x=\"{:.1}\" y=\"{y:.1}\">{}</text>\n",
                left + 8.0,
                y - 4.5,
                left + 34.0,
                y - 4.5,
                colour(curve),
                dashes(curve),
                left + 40.0,
                escaped(&curve.name)
            );
        }
        text
    }
}

fn colour(curve: &Curve) -> &'static str {
    COLOURS[curve.colour % COLOURS.len()]
}

fn dashes(curve: &Curve) -> &'static str {
    if curve.dashed { " stroke-dasharray=\"6 4\"" } else { "" }
}

/// A curve's lines between its gaps; dots where a curve is dashed, whose points are few.
fn drawn(curve: &Curve, points: &[(f64, f64)], x: &impl Fn(f64) -> f64, y: &impl Fn(f64) -> f64) -> String {
    let is_point = |p: &(f64, f64)| p.0.is_finite() && p.1.is_finite();
    let mut text = String::new();
    for part in points.split(|point| !is_point(point)).filter(|part| !part.is_empty()) {
        let places: Vec<String> = part.iter().map(|p| format!("{:.1},{:.1}", x(p.0), y(p.1))).collect();
        text += &format!(
            "<polyline fill=\"none\" stroke=\"{}\" stroke-width=\"1.6\" stroke-linejoin=\"round\"{} points=\"{}\"/>\n",
            colour(curve),
            dashes(curve),
            places.join(" ")
        );
        if curve.dashed || part.len() == 1 {
            for p in part {
                text += &format!(
                    "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"3\" fill=\"{}\"/>\n",
                    x(p.0),
                    y(p.1),
                    colour(curve)
                );
            }
        }
    }
    text
}

/// A curve of at most [`POINTS_MAX`] points: means of equal parts.
fn thinned(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let count = points.len().min(POINTS_MAX);
    let part = |i: usize| &points[i * points.len() / count..(i + 1) * points.len() / count];
    let mean = |part: &[(f64, f64)], of: fn(&(f64, f64)) -> f64| {
        part.iter().map(of).sum::<f64>() / part.len() as f64
    };
    (0..count).map(|i| (mean(part(i), |p| p.0), mean(part(i), |p| p.1))).collect()
}

/// A text as XML has it.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_numbers_around_all_values() {
        let labels = |low: f64, high: f64| {
            let axis = Axis::of([low, f64::NAN, high].into_iter());
            axis.ticks().map(|tick| axis.label(tick)).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(labels(1.0, 600.0), "0 100 200 300 400 500 600");
        assert_eq!(labels(1.43, 2.31), "1.4 1.6 1.8 2.0 2.2 2.4");
        assert_eq!(labels(0.0, 3e-5), "0.0e0 5.0e-6 1.0e-5 1.5e-5 2.0e-5 2.5e-5 3.0e-5");
        assert_eq!(labels(2.0, 2.0), "2.0 2.5");
    }

    #[test]
    fn curves_have_gaps_and_their_names_are_escaped() {
        let points = vec![(1.0, 2.0), (2.0, 1.5), (3.0, f64::NAN), (4.0, 1.0)];
        let curves = vec![Curve { name: "a<b".into(), points, colour: 0, dashed: false }];
        let svg = Chart { title: "loss", x: "step", y: "loss", curves }.svg();
        assert!(svg.contains("a&lt;b") && !svg.contains("a<b") && !svg.contains("NaN"), "{svg}");
        assert_eq!(svg.matches("<polyline").count(), 2);
        assert_eq!(thinned(&vec![(1.0, 2.0); 10_000]), vec![(1.0, 2.0); POINTS_MAX]);
    }
}
