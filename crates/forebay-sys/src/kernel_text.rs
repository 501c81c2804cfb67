//! Forms in which the kernel writes lists and names.

/// CPUs or nodes that a list names: `0-3,8,10-11`. What is no number is left out.
pub fn cpu_list(text: &str) -> Vec<usize> {
    text.trim()
        .split(',')
        .filter_map(|part| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            Some(first.parse().ok()?..=last.parse().ok()?)
        })
        .flatten()
        .collect()
}

/// A name of mountinfo, which writes blanks and backslashes as three octal digits.
pub fn unescape(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((byte, behind)) = rest.split_first() {
        let digits = behind.get(..3).filter(|_| *byte == b'\\');
        let code = digits.filter(|digits| digits.iter().all(u8::is_ascii_digit));
        let code = code.and_then(|digits| u8::from_str_radix(str::from_utf8(digits).ok()?, 8).ok());
        bytes.push(code.unwrap_or(*byte));
        rest = if code.is_some() { &behind[3..] } else { behind };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists() {
        assert_eq!(cpu_list("0-3,8,10-11\n"), [0, 1, 2, 3, 8, 10, 11]);
        assert!(cpu_list("\n").is_empty());
    }

    #[test]
    fn names() {
        assert_eq!(unescape(r"a\040b\134c\9"), r"a b\c\9");
        // No byte, no digits, no end, and what is not ASCII.
        assert_eq!(unescape(r"\777\+12\04"), r"\777\+12\04");
        assert_eq!(unescape("\\303\\274ü"), "üü");
    }
}
