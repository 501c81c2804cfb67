//! The text of a header: a Python dict of three known keys, and nothing that Python could evaluate.

use forebay_error::{Error, ErrorKind, Result};

use crate::text::shown;

/// What the dict says.
pub(super) struct Described {
    pub(super) descr: String,
    pub(super) fortran_order: bool,
    pub(super) shape: Vec<u64>,
}

pub(super) fn parse(text: &str) -> Result<Described> {
    let mut cursor = Cursor { rest: text };
    let (mut descr, mut fortran_order, mut shape) = (None, None, None);
    cursor.expect('{')?;
    while !cursor.take('}') {
        let key = cursor.string()?;
        cursor.expect(':')?;
        let is_new = match key {
            "descr" => descr.replace(cursor.descr()?).is_none(),
            "fortran_order" => fortran_order.replace(cursor.truth()?).is_none(),
            "shape" => shape.replace(cursor.shape()?).is_none(),
            _ => return Err(bad(format!("it has an unknown key {}", shown(key)))),
        };
        if !is_new {
            return Err(bad(format!("it has the key {} twice", shown(key))));
        }
        if !cursor.take(',') {
            cursor.expect('}')?;
            break;
        }
    }
    cursor.blank();
    if !cursor.rest.is_empty() {
        return Err(bad(format!("{} follows it", cursor.here())));
    }
    match (descr, fortran_order, shape) {
        (Some(descr), Some(fortran_order), Some(shape)) => Ok(Described { descr, fortran_order, shape }),
        (None, _, _) => Err(bad("it lacks `descr`")),
        (_, None, _) => Err(bad("it lacks `fortran_order`")),
        (_, _, None) => Err(bad("it lacks `shape`")),
    }
}

struct Cursor<'a> {
    rest: &'a str,
}

impl<'a> Cursor<'a> {
    fn blank(&mut self) {
        self.rest = self.rest.trim_start_matches([' ', '\t', '\n', '\r']);
    }

    /// What comes next, for messages.
    fn here(&self) -> String {
        if self.rest.is_empty() {
            "the end".to_owned()
        } else {
            shown(self.rest.get(..20).unwrap_or(self.rest))
        }
    }

    fn take(&mut self, wanted: char) -> bool {
        self.blank();
        match self.rest.strip_prefix(wanted) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn expect(&mut self, wanted: char) -> Result<()> {
        if self.take(wanted) {
            return Ok(());
        }
        Err(bad(format!("`{wanted}` is missing before {}", self.here())))
    }

    /// A string without escapes.
    fn string(&mut self) -> Result<&'a str> {
        self.blank();
        let quote = self.rest.chars().next().filter(|first| matches!(first, '\'' | '"'));
        let Some(quote) = quote else {
            return Err(bad(format!("a string is missing before {}", self.here())));
        };
        let Some((text, rest)) = self.rest[1..].split_once(quote) else {
            return Err(bad("a string has no end"));
        };
        if text.contains(['\\', '\n']) {
            return Err(bad("a string has an escape"));
        }
        self.rest = rest;
        Ok(text)
    }

    fn descr(&mut self) -> Result<String> {
        self.blank();
        if self.rest.starts_with(['[', '(']) {
            return Err(Error::new(ErrorKind::Unsupported, "the array's elements are structures")
                .hint("np.load(path, mmap_mode=\"r\")[\"field\"]  # then copy the field"));
        }
        self.string().map(str::to_owned)
    }

    fn truth(&mut self) -> Result<bool> {
        self.blank();
        for (word, value) in [("True", true), ("False", false)] {
            if let Some(rest) = self.rest.strip_prefix(word) {
                self.rest = rest;
                return Ok(value);
            }
        }
        Err(bad(format!("True or False is missing before {}", self.here())))
    }

    fn shape(&mut self) -> Result<Vec<u64>> {
        let mut dims = Vec::new();
        self.expect('(')?;
        while !self.take(')') {
            dims.push(self.number()?);
            if !self.take(',') {
                self.expect(')')?;
                // (3) is a number in Python, no tuple.
                return if dims.len() == 1 { Err(bad("`shape` is no tuple")) } else { Ok(dims) };
            }
        }
        Ok(dims)
    }

    fn number(&mut self) -> Result<u64> {
        self.blank();
        let digits =
            self.rest.len() - self.rest.trim_start_matches(|digit: char| digit.is_ascii_digit()).len();
        let number = self.rest[..digits].parse();
        let number =
            number.map_err(|_| bad(format!("a dimension is missing or too large before {}", self.here())))?;
        self.rest = &self.rest[digits..];
        // Python 2 wrote its long numbers so.
        self.rest = self.rest.strip_prefix('L').unwrap_or(self.rest);
        Ok(number)
    }
}

fn bad(reason: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::InvalidInput, format!("the .npy header is not valid: {reason}"))
}
