//! Words of the protocol: percent-encoding, XML, hexadecimal and base64, dates.

use std::fmt::Write;

/// Bytes of a percent-encoded text; a `+` is a space in queries alone.
pub(crate) fn decoded(text: &str, plus_is_space: bool) -> String {
    let mut made = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [byte, more @ ..] = rest {
        rest = more;
        let hex = more.get(..2).and_then(|two| u8::from_str_radix(std::str::from_utf8(two).ok()?, 16).ok());
        match (byte, hex) {
            (b'%', Some(value)) => {
                made.push(value);
                rest = &more[2..];
            }
            (b'+', _) if plus_is_space => made.push(b' '),
            _ => made.push(*byte),
        }
    }
    String::from_utf8_lossy(&made).into_owned()
}

/// As signatures have it: all but letters, digits, `-._~` and the kept ones.
pub(crate) fn encoded(text: &str, kept: &str) -> String {
    let mut made = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) || kept.as_bytes().contains(&byte) {
            made.push(byte as char);
        } else {
            let _ = write!(made, "%{byte:02X}");
        }
    }
    made
}

/// Text as XML has it. Characters that XML cannot have are written as references, as S3 does.
pub(crate) fn escaped(text: &str) -> String {
    let mut made = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => made.push_str("&amp;"),
            '<' => made.push_str("&lt;"),
            '>' => made.push_str("&gt;"),
            '"' => made.push_str("&quot;"),
            control if (control as u32) < 0x20 => {
                let _ = write!(made, "&#x{:x};", control as u32);
            }
            other => made.push(other),
        }
    }
    made
}

/// Text of XML without its references.
pub(crate) fn unescaped(text: &str) -> String {
    let mut made = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('&') {
        made.push_str(before);
        let Some((name, after)) = after.split_once(';') else { return made + "&" + after };
        let number = name.strip_prefix("#x").map(|hex| u32::from_str_radix(hex, 16));
        let number = number.or_else(|| name.strip_prefix('#').map(str::parse));
        match (name, number) {
            ("amp", _) => made.push('&'),
            ("lt", _) => made.push('<'),
            ("gt", _) => made.push('>'),
            ("quot", _) => made.push('"'),
            ("apos", _) => made.push('\''),
            (_, Some(Ok(number))) => made.extend(char::from_u32(number)),
            _ => made.push('?'),
        }
        rest = after;
    }
    made + rest
}

/// The texts of all elements of a name, references and further elements in them as they are.
pub(crate) fn elements<'a>(xml: &'a str, name: &str) -> Vec<&'a str> {
    let (open, close) = (format!("<{name}>"), format!("</{name}>"));
    xml.split(&open).skip(1).filter_map(|part| part.split_once(&close).map(|(text, _)| text)).collect()
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut made, byte| {
        let _ = write!(made, "{byte:02x}");
        made
    })
}

pub(crate) fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut made = String::new();
    for three in bytes.chunks(3) {
        let mut word = [0; 3];
        word[..three.len()].copy_from_slice(three);
        let word = u32::from_be_bytes([0, word[0], word[1], word[2]]);
        for at in 0..4 {
            let letter = LETTERS[(word >> (18 - 6 * at)) as usize & 63] as char;
            made.push(if at <= three.len() { letter } else { '=' });
        }
    }
    made
}

/// Year, month, day of a count of days since 1970 (Howard Hinnant's `civil_from_days`).
fn civil(days: i64) -> (i64, i64, i64) {
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

/// Seconds since 1970 as HTTP has them.
pub(crate) fn http_date(seconds: i64) -> String {
    let (days, time) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    let (year, month, day) = civil(days);
    let weekday = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"][days.rem_euclid(7) as usize];
    let names = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let month = names[month as usize - 1];
    format!(
        "{weekday}, {day:02} {month} {year} {:02}:{:02}:{:02} GMT",
        time / 3_600,
        time / 60 % 60,
        time % 60
    )
}

/// Seconds since 1970 as listings have them.
pub(crate) fn xml_date(seconds: i64) -> String {
    let (days, time) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    let (year, month, day) = civil(days);
    format!("{year}-{month:02}-{day:02}T{:02}:{:02}:{:02}.000Z", time / 3_600, time / 60 % 60, time % 60)
}

/// Seconds since 1970 of `20261127T103000Z`.
pub(crate) fn basic_date(text: &str) -> Option<i64> {
    let (date, time) = text.strip_suffix('Z')?.split_once('T')?;
    if date.len() != 8
        || time.len() != 6
        || !(date.to_owned() + time).bytes().all(|byte| byte.is_ascii_digit())
    {
        return None;
    }
    let number = |text: &str| text.parse::<i64>().ok();
    let (year, month, day) = (number(&date[..4])?, number(&date[4..6])?, number(&date[6..])?);
    // Days by asking the other way round: from a guess that is never past it.
    let mut days = (year - 1970) * 365 + (month - 1) * 28;
    while civil(days) != (year, month, day) {
        days += 1;
        if days > (year - 1969) * 366 + 40 {
            return None;
        }
    }
    Some(days * 86_400 + number(&time[..2])? * 3_600 + number(&time[2..4])? * 60 + number(&time[4..])?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(http_date(784_111_777), "Sun, 06 Nov 1994 08:49:37 GMT");
        assert_eq!(xml_date(951_826_154), "2000-02-29T12:09:14.000Z");
        assert_eq!(basic_date("20000229T120914Z"), Some(951_826_154));
        assert_eq!(basic_date("19700101T000000Z"), Some(0));
        assert_eq!(basic_date("20000230T120914Z"), None);
        assert_eq!(basic_date("2000-02-30"), None);
    }

    #[test]
    fn texts_come_back() {
        let odd = "a b+c%2F/ä\u{1F600}&<\"\u{1}";
        assert_eq!(decoded(&encoded(odd, "/"), false), odd);
        assert_eq!(unescaped(&escaped(odd)), odd);
        assert_eq!(base64(b"any carnal pleas"), "YW55IGNhcm5hbCBwbGVhcw==");
    }
}
