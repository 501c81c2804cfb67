//! What the elements of a tensor are, by the names that safetensors gives them.

use forebay_error::{Error, ErrorKind, Result};

macro_rules! dtypes {
    ($($name:ident $text:literal $bits:literal $doc:literal,)*) => {
        /// The type of a tensor's elements.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[allow(non_camel_case_types, reason = "names of the format")]
        pub enum Dtype {
            $(#[doc = $doc] $name,)*
        }

        impl Dtype {
            /// Every type there is.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// Its name in a header.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }

            /// Bits of one element; below eight, elements share bytes.
            pub const fn bits(self) -> u64 {
                match self { $(Self::$name => $bits,)* }
            }
        }
    };
}

dtypes! {
    Bool "BOOL" 8 "A truth value in a byte.",
    F4 "F4" 4 "Four-bit float (MXFP4), two to a byte.",
    F6E2M3 "F6_E2M3" 6 "Six-bit float, four to three bytes.",
    F6E3M2 "F6_E3M2" 6 "Six-bit float, four to three bytes.",
    U8 "U8" 8 "Unsigned byte.",
    I8 "I8" 8 "Signed byte.",
    F8E5M2 "F8_E5M2" 8 "Eight-bit float.",
    F8E4M3 "F8_E4M3" 8 "Eight-bit float without infinities.",
    F8E8M0 "F8_E8M0" 8 "Eight-bit power of two: a scale.",
    F8E4M3Fnuz "F8_E4M3FNUZ" 8 "Eight-bit float with one zero.",
    F8E5M2Fnuz "F8_E5M2FNUZ" 8 "Eight-bit float with one zero.",
    I16 "I16" 16 "Signed, two bytes.",
    U16 "U16" 16 "Unsigned, two bytes.",
    F16 "F16" 16 "Half precision.",
    BF16 "BF16" 16 "Brain float.",
    I32 "I32" 32 "Signed, four bytes.",
    U32 "U32" 32 "Unsigned, four bytes.",
    F32 "F32" 32 "Single precision.",
    C64 "C64" 64 "Complex of two single precision floats.",
    F64 "F64" 64 "Double precision.",
    I64 "I64" 64 "Signed, eight bytes.",
    U64 "U64" 64 "Unsigned, eight bytes.",
}

impl Dtype {
    /// The type of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|dtype| dtype.name() == name)
    }

    /// The type of this name, or an error that lists those there are.
    pub fn parse(name: &str) -> Result<Self> {
        Self::from_name(name).ok_or_else(|| {
            let known: Vec<&str> = Self::ALL.iter().map(|dtype| dtype.name()).collect();
            Error::new(ErrorKind::InvalidInput, format!("unknown dtype {}", crate::text::shown(name)))
                .hint(format!("one of {}", known.join(", ")))
        })
    }

    /// What an element's address should be a multiple of.
    pub const fn alignment(self) -> u64 {
        match self.bits() {
            16 => 2,
            32 => 4,
            64 => 8,
            _ => 1,
        }
    }

    /// Bytes of a tensor of this shape. The error says what is wrong with the shape.
    pub fn nbytes(self, shape: &[u64]) -> std::result::Result<u64, String> {
        let bits = shape
            .iter()
            .try_fold(1_u64, |product, dim| product.checked_mul(*dim))
            .and_then(|elements| elements.checked_mul(self.bits()))
            .ok_or_else(|| format!("the size of {} {} overflows", self.name(), shape_text(shape)))?;
        if bits % 8 != 0 {
            return Err(format!("{} {} is no whole number of bytes", self.name(), shape_text(shape)));
        }
        Ok(bits / 8)
    }
}

/// A shape as messages show it.
pub(crate) fn shape_text(shape: &[u64]) -> String {
    const MAX_DIMENSIONS: usize = 8;
    let mut dims: Vec<String> = shape.iter().take(MAX_DIMENSIONS).map(u64::to_string).collect();
    if shape.len() > MAX_DIMENSIONS {
        dims.push("…".to_owned());
    }
    format!("[{}]", dims.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_there_and_back() {
        for dtype in Dtype::ALL {
            assert_eq!(Dtype::from_name(dtype.name()), Some(*dtype));
        }
        let error = Dtype::parse("f32").unwrap_err();
        assert!(error.hints()[0].contains("BF16"), "{error:?}");
    }

    #[test]
    fn sizes() {
        assert_eq!(Dtype::F32.nbytes(&[]), Ok(4));
        assert_eq!(Dtype::F4.nbytes(&[3, 2]), Ok(3));
        assert_eq!(Dtype::F6E2M3.nbytes(&[4]), Ok(3));
        assert_eq!(Dtype::F64.nbytes(&[0, u64::MAX]), Ok(0));
        assert!(Dtype::F4.nbytes(&[3]).is_err());
        assert!(Dtype::U8.nbytes(&[1 << 40, 1 << 40]).is_err());
        assert!(Dtype::U64.nbytes(&[1 << 59]).is_err());
    }
}
