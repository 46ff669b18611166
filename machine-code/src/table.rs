//! The report on compiled shaders: the bar that each has to pass, and the table of their statistics.

use std::fmt::Write;

use crate::assembly::{product_loop, refusals};
use crate::vulkan::Compiled;

/// The most bytes of a kernel's machine code: the instruction cache of an AMD compute unit.
pub const CODE_MAX: u64 = 32 << 10;

/// The columns of the table: the driver's name of a statistic, and ours.
const COLUMNS: [(&str, &str); 8] = [
    ("VGPRs", "vector registers"),
    ("SGPRs", "scalar registers"),
    ("Scratch size", "scratch bytes"),
    ("LDS size", "workgroup bytes"),
    ("Code size", "code bytes"),
    ("Instructions", "instructions"),
    ("Latency", "latency"),
    ("Inverse Throughput", "inverse throughput"),
];

impl Compiled {
    /// The statistic with this driver's name; 0 if the driver has none of that name.
    pub fn statistic(&self, name: &str) -> u64 {
        self.statistics.get(name).copied().unwrap_or(0)
    }

    /// The number of spilled registers, which are stored and loaded again.
    pub fn spilled(&self) -> u64 {
        self.statistic("Spilled VGPRs") + self.statistic("Spilled SGPRs")
    }

    /// The faults of a kernel for a GPU, in words: it spills, it has scratch memory, its code is too long, or it has a float
    /// instruction that is on neither list.
    pub fn faults(&self) -> Vec<String> {
        let mut found: Vec<String> =
            refusals(&self.assembly, self.floats).iter().map(ToString::to_string).collect();
        if self.spilled() > 0 {
            found.push(format!("{} registers are spilled", self.spilled()));
        }
        let (scratch, code) = (self.statistic("Scratch size"), self.statistic("Code size"));
        if scratch > 0 {
            found.push(format!("{scratch} bytes of scratch memory"));
        }
        if code > CODE_MAX {
            found.push(format!("{code} bytes of code, at most {CODE_MAX} are allowed"));
        }
        if code == 0 {
            found.push("the driver does not tell the code's size".into());
        }
        found
    }
}

/// The first lines of the table.
pub fn header() -> String {
    let names: Vec<&str> = COLUMNS.iter().map(|(_, name)| *name).collect();
    let rule = "---:|".repeat(COLUMNS.len() + 2);
    format!(
        "| GPU | shader | {} | spilled | products : instructions of the loop over K |\n|---|---|{rule}",
        names.join(" | ")
    )
}

/// A shader's line.
pub fn line(generation: &str, shader: &str, compiled: &Compiled) -> String {
    let mut text = format!("| {generation} | {shader} |");
    for (statistic, _) in COLUMNS {
        // Writing to a string cannot fail.
        let _ = write!(text, " {} |", compiled.statistic(statistic));
    }
    let k = product_loop(&compiled.assembly)
        .map_or(String::new(), |l| format!("{} : {}", l.products, l.instructions));
    let _ = write!(text, " {} | {k} |", compiled.spilled());
    text
}
