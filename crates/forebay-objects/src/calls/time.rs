//! Times of servers: of listings (`2026-11-22T10:00:00.000Z`), and of heads (`Sun, 22 Nov 2026 10:00:00 GMT`).

use std::time::{SystemTime, UNIX_EPOCH};

/// Seconds since 1970; 0 where it is before.
pub(super) fn since_1970(time: SystemTime) -> i64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() as i64)
}

/// Seconds since 1970 of either form.
pub(super) fn seconds(text: &str) -> Option<i64> {
    if text.contains('T') && text.ends_with('Z') { of_listing(text) } else { of_head(text) }
}

fn of_listing(text: &str) -> Option<i64> {
    let (date, time) = text.strip_suffix('Z')?.split_once('T')?;
    let mut date = date.splitn(3, '-');
    let (year, month, day) = (number(date.next()?)?, number(date.next()?)?, number(date.next()?)?);
    instant(year, month, day, time)
}

fn of_head(text: &str) -> Option<i64> {
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let mut words = text.split_once(", ")?.1.split(' ');
    let day = number(words.next()?)?;
    let month = words.next()?;
    let month = MONTHS.iter().position(|name| *name == month)? as i64 + 1;
    instant(number(words.next()?)?, month, day, words.next()?)
}

fn number(text: &str) -> Option<i64> {
    let is_plain = !text.is_empty() && text.len() <= 4 && text.bytes().all(|byte| byte.is_ascii_digit());
    is_plain.then(|| text.parse().ok())?
}

/// `time` is `10:00:00`, and perhaps a fraction.
fn instant(year: i64, month: i64, day: i64, time: &str) -> Option<i64> {
    let mut time = time.split('.').next()?.splitn(3, ':');
    let (hour, minute, second) = (number(time.next()?)?, number(time.next()?)?, number(time.next()?)?);
    let is_good =
        (1..=12).contains(&month) && (1..=31).contains(&day) && hour < 24 && minute < 60 && second <= 60;
    is_good.then(|| days(year, month, day) * 86_400 + hour * 3600 + minute * 60 + second)
}

/// Days from 1970-01-01 to this one. Years begin in March, so that leap days are the last ones.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let leap_days = year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    365 * year + leap_days + (153 * month + 2) / 5 + day - 1 - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_are_seconds() {
        for (text, expected) in [
            ("1970-01-01T00:00:00Z", 0),
            ("2000-02-29T12:00:00.500Z", 951_825_600),
            ("2026-11-22T10:00:00.000Z", 1_795_341_600),
            ("Sun, 22 Nov 2026 10:00:00 GMT", 1_795_341_600),
            ("Thu, 01 Jan 1970 00:00:01 GMT", 1),
        ] {
            assert_eq!(seconds(text), Some(expected), "{text}");
        }
        for bad in [
            "",
            "now",
            "2026-13-01T00:00:00Z",
            "2026-11-22",
            "Sun, 22 Foo 2026 10:00:00 GMT",
            "-1-2-3T4:5:6Z",
        ] {
            assert_eq!(seconds(bad), None, "{bad}");
        }
    }
}
