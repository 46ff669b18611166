//! Completes `shaders/product.wgsl` for a pair of digit counts. Standard library only: the build script lints the
//! result for every pair.

use std::fmt::Write;

/// Invocations compute 4 x 4 outputs.
const ROWS: u32 = 4;
/// Words of K in a tile, and words of a tile of one digit plane.
const STEP: u32 = 4;
const TILE_WORDS: u32 = 32 * STEP;

/// The shader's text for `digits_a` and `digits_b` in 1..=4, from the template's.
pub fn complete(template: &str, digits_a: u32, digits_b: u32) -> String {
    let mut out = String::new();
    for line in template.lines() {
        match line.trim().strip_prefix("//@") {
            None => {
                out.push_str(line);
                out.push('\n');
            }
            Some(part) => out.push_str(&lines(part, digits_a, digits_b)),
        }
    }
    out
}

fn lines(part: &str, digits_a: u32, digits_b: u32) -> String {
    let sums = digits_a + digits_b - 1;
    let mut out = String::new();
    // Writing to a string cannot fail.
    let mut line = |text: String| {
        let _ = writeln!(out, "{text}");
    };
    match part {
        "constants" => {
            line(format!("const DIGITS_A: u32 = {digits_a}u;"));
            line(format!("const DIGITS_B: u32 = {digits_b}u;"));
        }
        "accumulators" => {
            for row in 0..ROWS {
                (0..sums).for_each(|s| line(format!("    var s{s}_{row} = vec4<i32>();")));
                (0..4).for_each(|c| line(format!("    var total{row}_{c} = vec4<u32>();")));
            }
        }
        "load" => {
            for (side, digits, rows) in [("a", digits_a, "m"), ("b", digits_b, "n")] {
                for half in 0..2 {
                    line(format!("        if (inside && row_{side} + {}u < {rows}) {{", 16 * half));
                    for d in 0..digits {
                        line(format!(
                            "            tile_{side}[{}u + index] = {side}[{d}u * plane_{side} + at_{side} + {}u * words + k];",
                            d * TILE_WORDS + 64 * half,
                            16 * half,
                        ));
                    }
                    line("        } else {".into());
                    for d in 0..digits {
                        line(format!(
                            "            tile_{side}[{}u + index] = 0u;",
                            d * TILE_WORDS + 64 * half
                        ));
                    }
                    line("        }".into());
                }
            }
        }
        "multiply" => {
            for c in 0..STEP {
                for e in 0..digits_b {
                    for j in 0..4 {
                        let at = e * TILE_WORDS + j * STEP + c;
                        line(format!("        let b{c}_{e}_{j} = tile_b[from_b + {at}u];"));
                    }
                }
                for d in 0..digits_a {
                    for row in 0..ROWS {
                        let at = d * TILE_WORDS + row * STEP + c;
                        line(format!("        let a{c}_{d}_{row} = tile_a[from_a + {at}u];"));
                        for e in 0..digits_b {
                            let dot = |j: u32| format!("dot4I8Packed(a{c}_{d}_{row}, b{c}_{e}_{j})");
                            line(format!(
                                "        s{}_{row} += vec4<i32>({}, {}, {}, {});",
                                d + e,
                                dot(0),
                                dot(1),
                                dot(2),
                                dot(3)
                            ));
                        }
                    }
                }
            }
        }
        "flush" => {
            for row in 0..ROWS {
                for s in 0..sums {
                    for (c, part) in ["x", "y", "z", "w"].iter().enumerate() {
                        line(format!(
                            "            total{row}_{c} = u128_add(total{row}_{c}, i128_digit(s{s}_{row}.{part}, {s}u));"
                        ));
                    }
                    line(format!("            s{s}_{row} = vec4<i32>();"));
                }
            }
        }
        "store" => {
            for row in 0..ROWS {
                for c in 0..4 {
                    line(format!(
                        "    if (row + {row}u < m && column + {c}u < n) {{\n        \
                         output[place + {row}u * n + {c}u] = finish(total{row}_{c}, \
                         magnitudes_a[mags_a + {row}u * p[1].x], magnitudes_b[mags_b + {c}u * p[1].x]);\n    }}"
                    ));
                }
            }
        }
        other => line(format!("    // unknown part {other}")),
    }
    out
}
