//! One HTML file for people: no script, nothing from elsewhere, foreign text escaped, light and dark, readable on a phone.

pub mod audit;
pub mod game;
pub mod monitoring;
pub mod path;
pub mod plot;
mod strip;
pub mod verdict;

use crate::cli::view::escape;
use tiebreak_run::run::shell;

/// A file that is being written.
pub struct Page {
    title: String,
    body: String,
}

/// The colour of what came out.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Tone {
    /// Somebody is convicted.
    Bad,
    /// All that was looked at is as it should be.
    Good,
    /// Nothing is shown.
    Neutral,
}

/// The option with the trainer's key in a command of a page; empty if nobody signed. A run or a verdict names whatever key its
/// author likes, so the page gives the key that its maker knows to be the trainer's, and leaves it to the reader otherwise.
fn key_option(named: Option<&str>, known: Option<&str>) -> String {
    match (named, known) {
        (_, Some(key)) => format!(" --trainer-key {}", shell::word(key)),
        (Some(_), None) => " --trainer-key KEY".into(),
        (None, None) => String::new(),
    }
}

const STYLE: &str = "\
:root{color-scheme:light dark;--ink:#1c1e21;--soft:#5d6470;--line:#d9dce1;--ground:#fff;--panel:#f5f6f8;--bad:#a61b1b;--bad-ground:#fdecec;--good:#1c5d33;--done:#2e8b57}\
@media(prefers-color-scheme:dark){:root{--ink:#e6e8eb;--soft:#a0a7b3;--line:#363b43;--ground:#15171a;--panel:#1e2125;--bad:#ff9c94;--bad-ground:#3a1717;--good:#8fd6a6;--done:#3f9d68}}\
*{box-sizing:border-box}\
body{margin:0;overflow-wrap:anywhere;background:var(--ground);color:var(--ink);font:16px/1.5 system-ui,-apple-system,'Segoe UI',Roboto,sans-serif}\
main{max-width:52rem;margin:0 auto;padding:1.25rem 1rem 3rem}\
h1{font-size:1.45rem;line-height:1.25;margin:.2rem 0 1rem}\
h2{font-size:1.1rem;margin:2.2rem 0 .6rem;padding-bottom:.25rem;border-bottom:1px solid var(--line)}\
p{margin:.6rem 0;overflow-wrap:anywhere}\
.out{border-left:.35rem solid var(--soft);background:var(--panel);padding:.8rem 1rem;border-radius:.3rem}\
.out.bad{border-color:var(--bad);background:var(--bad-ground)}\
.out.good{border-color:var(--good)}\
.out strong{display:block;font-size:1.1rem}.out.bad strong{color:var(--bad)}.out.good strong{color:var(--good)}\
figure{margin:.9rem 0 .5rem}figcaption{font-size:.92rem;margin-bottom:.25rem;overflow-wrap:anywhere}\
figure svg{display:block;width:100%;height:2.5rem}\
.ground{fill:var(--line);background:var(--line)}.done{fill:var(--done);background:var(--done)}\
.partly{fill:var(--done);background:var(--done);opacity:.5}.differs{fill:var(--bad);background:var(--bad)}\
.kept{stroke:var(--soft);stroke-width:2;vector-effect:non-scaling-stroke;background:var(--soft)}\
.ends{display:flex;justify-content:space-between;color:var(--soft);font-size:.82rem}\
.legend{display:flex;flex-wrap:wrap;gap:.25rem 1.1rem;font-size:.86rem;color:var(--soft)}\
.legend i{display:inline-block;width:.85rem;height:.85rem;margin-right:.4rem;border-radius:.15rem;vertical-align:-.1rem}\
.legend i.kept{width:2px;margin-right:.6rem}\
.soft{color:var(--soft);font-size:.92rem}\
code,.mono{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;font-size:.86em;overflow-wrap:anywhere}\
pre{background:var(--panel);border-radius:.3rem;padding:.7rem .9rem;margin:.6rem 0;white-space:pre-wrap;overflow-wrap:anywhere;font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;font-size:.86rem}\
dl{display:grid;grid-template-columns:minmax(7rem,12rem) 1fr;gap:.35rem 1rem;margin:.6rem 0}\
dt{color:var(--soft)}dd{margin:0;overflow-wrap:anywhere;min-width:0}\
.sides{display:grid;grid-template-columns:repeat(auto-fit,minmax(15rem,1fr));gap:.8rem;margin:.6rem 0}\
.side{background:var(--panel);border-radius:.3rem;padding:.7rem .9rem;min-width:0;border-top:.2rem solid var(--soft)}\
.side.bad{border-color:var(--bad)}.side.good{border-color:var(--good)}\
.side b{display:block;font-size:.92rem;margin-bottom:.2rem}\
ol,ul{padding-left:1.4rem;margin:.6rem 0}li{margin:.3rem 0;overflow-wrap:anywhere}\
table{border-collapse:collapse;width:100%;font-size:.92rem;margin:.6rem 0}\
th,td{text-align:left;vertical-align:top;padding:.35rem .6rem .35rem 0;border-bottom:1px solid var(--line);overflow-wrap:anywhere}\
th{color:var(--soft);font-weight:600;overflow-wrap:normal}\
@media(max-width:36rem){dl{grid-template-columns:1fr;gap:.1rem}dd{margin-bottom:.45rem}\
table,tbody,tr,td{display:block}thead{display:none}tr{padding:.45rem 0;border-bottom:1px solid var(--line)}\
td{border:0;padding:.1rem 0}td[data-of]::before{content:attr(data-of) ' ';color:var(--soft)}}\
.squares{display:flex;flex-wrap:wrap;gap:.3rem}.squares i{width:1.05rem;height:1.05rem;border-radius:.2rem}\
.drawing{max-width:36rem}.drawing svg{height:auto;font-size:11px}.drawing text{fill:var(--ink)}\
.grid{stroke:var(--line)}.idle{fill:none;stroke:var(--soft);border:1px solid var(--soft)}\
.curve{fill:none;stroke-width:2}.c0{stroke:var(--done);background:var(--done)}.c1{stroke:var(--soft);stroke-dasharray:5 3;background:var(--soft)}\
.chosen{stroke:var(--bad);fill:none;background:var(--bad)}circle.chosen{fill:var(--bad)}\
.legend i.line{height:3px;vertical-align:.25rem}.legend i.round{border-radius:50%}.legend i.turned{transform:rotate(45deg) scale(.8);border-radius:0}\
details{margin:.6rem 0}summary{cursor:pointer;color:var(--soft)}\
footer{margin-top:2.5rem;color:var(--soft);font-size:.86rem}";

/// Text within HTML: what a terminal obeys is shown, as there; what HTML obeys too.
pub fn text(foreign: &str) -> String {
    let mut out = String::with_capacity(foreign.len() + 16);
    for c in escape::one_line(foreign).chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}

impl Page {
    /// A page whose heading is its title.
    pub fn new(title: &str) -> Page {
        Page { title: text(title), body: format!("<h1>{}</h1>\n", text(title)) }
    }

    /// The result, and its reason.
    pub fn outcome(&mut self, tone: Tone, what: &str, why: &str) {
        let class = match tone {
            Tone::Bad => "out bad",
            Tone::Good => "out good",
            Tone::Neutral => "out",
        };
        let (what, why) = (text(what), text(why));
        self.body.push_str(&format!("<div class=\"{class}\"><strong>{what}</strong>{why}</div>\n"));
    }

    fn push(&mut self, html: &str) {
        self.body.push_str(html);
    }

    /// Lines that stand in no order.
    pub fn list(&mut self, lines: &[String]) {
        self.body.push_str("<ul>\n");
        lines.iter().for_each(|line| self.body.push_str(&format!("<li>{}</li>\n", text(line))));
        self.body.push_str("</ul>\n");
    }

    /// A section's heading.
    pub fn heading(&mut self, title: &str) {
        self.body.push_str(&format!("<h2>{}</h2>\n", text(title)));
    }

    /// A paragraph.
    pub fn say(&mut self, paragraph: &str) {
        self.body.push_str(&format!("<p>{}</p>\n", text(paragraph)));
    }

    /// A remark.
    pub fn remark(&mut self, paragraph: &str) {
        self.body.push_str(&format!("<p class=\"soft\">{}</p>\n", text(paragraph)));
    }

    /// Names and what they are; digests and numbers in one width of letters.
    pub fn facts(&mut self, facts: &[(&str, String)]) {
        self.body.push_str("<dl>\n");
        for (name, value) in facts {
            self.body.push_str(&format!("<dt>{}</dt><dd class=\"mono\">{}</dd>\n", text(name), text(value)));
        }
        self.body.push_str("</dl>\n");
    }

    /// The statements of two sides about one thing: (who, what, whether it is right, if that is known).
    pub fn sides(&mut self, sides: &[(&str, String, Option<bool>)]) {
        self.body.push_str("<div class=\"sides\">\n");
        for (who, value, right) in sides {
            let class = match right {
                Some(true) => "side good",
                Some(false) => "side bad",
                None => "side",
            };
            let (who, value) = (text(who), text(value));
            self.body.push_str(&format!(
                "<div class=\"{class}\"><b>{who}</b><span class=\"mono\">{value}</span></div>\n"
            ));
        }
        self.body.push_str("</div>\n");
    }

    /// Sentences in their order.
    pub fn steps(&mut self, steps: &[String]) {
        self.body.push_str("<ol>\n");
        steps.iter().for_each(|step| self.body.push_str(&format!("<li>{}</li>\n", text(step))));
        self.body.push_str("</ol>\n");
    }

    /// A table. On a phone each row is a block whose lines name their columns.
    pub fn table(&mut self, columns: &[&str], rows: &[Vec<String>]) {
        let heads: String = columns.iter().map(|column| format!("<th>{}</th>", text(column))).collect();
        self.body.push_str(&format!("<table><thead><tr>{heads}</tr></thead><tbody>\n"));
        for row in rows {
            let cell = |(column, value): (&&str, &String)| {
                format!("<td class=\"mono\" data-of=\"{}\">{}</td>", text(column), text(value))
            };
            let cells: String = columns.iter().zip(row).map(cell).collect();
            self.body.push_str(&format!("<tr>{cells}</tr>\n"));
        }
        self.body.push_str("</tbody></table>\n");
    }

    /// Lines for a shell.
    pub fn commands(&mut self, lines: &[String]) {
        let lines: Vec<String> = lines.iter().map(|line| text(line)).collect();
        self.body.push_str(&format!("<pre>{}</pre>\n", lines.join("\n")));
    }

    /// Begins a part that is folded away.
    pub fn fold(&mut self, summary: &str) {
        self.body.push_str(&format!("<details><summary>{}</summary>\n", text(summary)));
    }

    /// Ends it.
    pub fn unfold(&mut self) {
        self.body.push_str("</details>\n");
    }

    /// The file.
    pub fn finish(self) -> String {
        let Page { title, body } = self;
        let version = env!("CARGO_PKG_VERSION");
        format!(
            "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n\
             <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
             <title>{title}</title>\n<style>{STYLE}</style></head>\n<body><main>\n{body}\
             <footer>Written by tiebreak {version}. This page only tells; the evidence is in the files that it was made from.</footer>\n</main></body></html>\n"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_text_is_text() {
        let foreign = "<script>alert(1)</script>\u{202e}\" onload='x' &amp;\n\u{1b}[";
        let mut page = Page::new(foreign);
        page.outcome(Tone::Bad, foreign, foreign);
        page.heading(foreign);
        page.say(foreign);
        page.remark(foreign);
        page.facts(&[(foreign, foreign.into())]);
        page.sides(&[(foreign, foreign.into(), None)]);
        page.steps(&[foreign.into()]);
        page.list(&[foreign.into()]);
        page.strip(&strip::Strip {
            name: foreign,
            steps: 9,
            replayed: &[(1, 2)],
            difference: Some(3),
            checkpoints: &[0],
        });
        page.table(&[foreign], &[vec![foreign.into()]]);
        page.commands(&[foreign.into()]);
        page.fold(foreign);
        page.unfold();
        let html = page.finish();
        assert!(
            !html.contains("<script") && !html.contains("' &amp;") && !html.contains("\" onload"),
            "{html}"
        );
        assert!(!html.contains('\u{202e}') && !html.contains('\u{1b}'));
        assert_eq!(html.matches("&lt;script&gt;").count(), 20);
        assert!(!html.contains("http://") && !html.contains("https://") && !html.contains("src="));
    }
}
