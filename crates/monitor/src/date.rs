//! Dates on the command line: a day, or a second of it, in UTC.

use tiebreak_record::commit::Malformed;

/// The last year of a date.
const YEAR_MAX: u64 = 9999;
const FORMS: &str = "the forms are 2026-11-25, 2026-11-25T10:20:30Z, or \"2026-11-25 10:20:30 UTC\"";

/// Seconds since 1970 of a date. A day alone is its first second.
///
/// # Errors
/// If the text has another form, or names no day between 1970 and 9999.
///
/// ```
/// use tiebreak_monitor::date::seconds;
///
/// assert_eq!(seconds("2023-11-14T22:13:20Z")?, 1_700_000_000);
/// assert_eq!(seconds("2000-02-29")?, 951_782_400);
/// assert!(seconds("1900-02-29").is_err() && seconds("2026-1-1").is_err());
/// # Ok::<(), tiebreak_record::commit::Malformed>(())
/// ```
pub fn seconds(text: &str) -> Result<u64, Malformed> {
    let wrong = || Malformed::invalid("date", format!("{text:?}: {FORMS}"));
    let (day, time) = match text.len() {
        10 => (text, "00:00:00"),
        _ => {
            let rest = text.strip_suffix('Z').or_else(|| text.strip_suffix(" UTC")).ok_or_else(wrong)?;
            let between = if text.ends_with('Z') { 'T' } else { ' ' };
            rest.split_once(between).ok_or_else(wrong)?
        }
    };
    let [year, month, day] = numbers(day, '-', [4, 2, 2]).ok_or_else(wrong)?;
    let [hour, minute, second] = numbers(time, ':', [2, 2, 2]).ok_or_else(wrong)?;
    let is_time = hour < 24 && minute < 60 && second < 60;
    if !is_time || !(1970..=YEAR_MAX).contains(&year) || !(1..=12).contains(&month) {
        return Err(wrong());
    }
    if day < 1 || day > days_of(year, month) {
        return Err(wrong());
    }
    let days = (1970..year).map(days_of_year).sum::<u64>()
        + (1..month).map(|month| days_of(year, month)).sum::<u64>()
        + day
        - 1;
    Ok(days * 86_400 + hour * 3600 + minute * 60 + second)
}

/// Three numbers of so many digits each.
fn numbers(text: &str, between: char, digits: [usize; 3]) -> Option<[u64; 3]> {
    let mut parts = text.split(between);
    let mut next = |digits: usize| {
        let part = parts.next()?;
        let fits = part.len() == digits && part.bytes().all(|byte| byte.is_ascii_digit());
        fits.then(|| part.parse().ok())?
    };
    let found = [next(digits[0])?, next(digits[1])?, next(digits[2])?];
    parts.next().is_none().then_some(found)
}

fn is_leap(year: u64) -> bool {
    year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
}

fn days_of_year(year: u64) -> u64 {
    if is_leap(year) { 366 } else { 365 }
}

fn days_of(year: u64, month: u64) -> u64 {
    match month {
        2 => 28 + u64::from(is_leap(year)),
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tiebreak_record::commit::cosignature::utc;

    #[test]
    fn dates_are_read_as_they_are_printed() {
        for time in [0, 951_782_399, 951_782_400, 1_700_000_000, 4_107_542_399, 253_402_300_799] {
            let text = utc(time);
            assert_eq!(seconds(&text).unwrap(), time, "{text}");
            let short = text.replace(" UTC", "Z").replacen(' ', "T", 1);
            assert_eq!(seconds(&short).unwrap(), time, "{short}");
        }
    }

    #[test]
    fn other_forms_are_refused() {
        for text in [
            "",
            "2026",
            "2026-13-01",
            "2026-00-01",
            "2026-02-29",
            "2026-11-31",
            "2026-11-25T24:00:00Z",
            "2026-11-25T10:20:30",
            "2026-11-25 10:20:30Z",
            "2026-11-25T10:20:30+01:00",
            "1969-12-31",
            "+026-11-25",
            "2026-11-25-01",
            "٢026-11-25",
        ] {
            assert!(seconds(text).is_err(), "{text}");
        }
    }
}
