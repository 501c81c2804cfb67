//! Dates of logs and reports, UTC.

/// A second of the calendar, UTC.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct UtcTime {
    /// Of the Gregorian calendar.
    pub year: u64,
    /// 1 to 12.
    pub month: u64,
    /// 1 to 31.
    pub day: u64,
    /// 0 to 23.
    pub hour: u64,
    /// 0 to 59.
    pub minute: u64,
    /// 0 to 59: leap seconds are not counted.
    pub second: u64,
}

impl UtcTime {
    /// From seconds since the first day of 1970. Days are counted from the first of March of the year 0, so that a leap day
    /// is the last one of its year, in eras of 400 years.
    pub fn from_unix(seconds: u64) -> Self {
        let (days, rest) = (seconds / 86_400 + 719_468, seconds % 86_400);
        let (era, day) = (days / 146_097, days % 146_097);
        let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
        let day = day - (365 * year + year / 4 - year / 100);
        let from_march = (5 * day + 2) / 153;
        let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
        Self {
            year: year + era * 400 + u64::from(month <= 2),
            month,
            day: day - (153 * from_march + 2) / 5 + 1,
            hour: rest / 3600,
            minute: rest / 60 % 60,
            second: rest % 60,
        }
    }
}

/// `2026-11-21 10:00:00`.
impl std::fmt::Display for UtcTime {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { year, month, day, hour, minute, second } = self;
        write!(f, "{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}")
    }
}

#[cfg(test)]
mod tests {
    use super::UtcTime;

    #[test]
    fn dates() {
        let text = |seconds| UtcTime::from_unix(seconds).to_string();
        assert_eq!(text(0), "1970-01-01 00:00:00");
        assert_eq!(text(951_782_399), "2000-02-28 23:59:59");
        assert_eq!(text(951_782_400), "2000-02-29 00:00:00");
        assert_eq!(text(1_795_219_200), "2026-11-21 00:00:00");
        assert_eq!(text(4_107_542_399), "2100-02-28 23:59:59");
        assert!(text(u64::MAX).ends_with(":15"));
    }
}
