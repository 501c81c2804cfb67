//! Element types of tensors: one table with their names in formats and libraries.

use forebay_error::{Error, ErrorKind, Result};

macro_rules! dtypes {
    (
        safetensors: $($theirs:ident)*;
        $($name:ident $text:literal $bits:literal $numpy:literal $torch:literal $descr:literal $code:literal $doc:literal,)*
    ) => {
        /// The type of a tensor's elements.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[allow(non_camel_case_types, reason = "names of the format")]
        pub enum Dtype {
            $(#[doc = $doc] $name,)*
        }

        impl Dtype {
            /// Every type that safetensors has.
            pub const ALL: &[Self] = &[$(Self::$theirs,)*];

            /// These, and what numpy, ml_dtypes and torch have beside them.
            pub const TABLE: &[Self] = &[$(Self::$name,)*];

            /// Its name: safetensors' where that has one, else numpy's.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }

            /// Bits of one element; below eight, elements share bytes.
            pub const fn bits(self) -> u64 {
                match self { $(Self::$name => $bits,)* }
            }

            /// numpy's name, or that of the package ml_dtypes; empty where neither has it.
            pub const fn numpy(self) -> &'static str {
                match self { $(Self::$name => $numpy,)* }
            }

            /// torch's name, empty where it has none.
            pub const fn torch(self) -> &'static str {
                match self { $(Self::$name => $torch,)* }
            }

            /// How `.npy` files and array interfaces say it. What numpy itself has not got are bytes to it: `|V1`.
            pub const fn descr(self) -> &'static str {
                match self { $(Self::$name => $descr,)* }
            }

            /// DLPack's code, where an element there is as wide as here.
            pub const fn dlpack(self) -> Option<u8> {
                let code: i16 = match self { $(Self::$name => $code,)* };
                if code < 0 { None } else { Some(code as u8) }
            }
        }
    };
}

dtypes! {
    safetensors: Bool F4 F6E2M3 F6E3M2 U8 I8 F8E5M2 F8E4M3 F8E8M0 F8E4M3Fnuz F8E5M2Fnuz I16 U16 F16 BF16 I32 U32 F32 C64 F64
        I64 U64;
    Bool "BOOL" 8 "bool" "bool" "|b1" 6 "A truth value in a byte.",
    F4 "F4" 4 "" "float4_e2m1fn_x2" "" -1 "Four-bit float (MXFP4), two to a byte.",
    F6E2M3 "F6_E2M3" 6 "" "" "" -1 "Six-bit float, four to three bytes.",
    F6E3M2 "F6_E3M2" 6 "" "" "" -1 "Six-bit float, four to three bytes.",
    U8 "U8" 8 "uint8" "uint8" "|u1" 1 "Unsigned byte.",
    I8 "I8" 8 "int8" "int8" "|i1" 0 "Signed byte.",
    F8E5M2 "F8_E5M2" 8 "float8_e5m2" "float8_e5m2" "|V1" 12 "Eight-bit float.",
    F8E4M3 "F8_E4M3" 8 "float8_e4m3fn" "float8_e4m3fn" "|V1" 10 "Eight-bit float without infinities.",
    F8E8M0 "F8_E8M0" 8 "float8_e8m0fnu" "float8_e8m0fnu" "|V1" 14 "Eight-bit power of two: a scale.",
    F8E4M3Fnuz "F8_E4M3FNUZ" 8 "float8_e4m3fnuz" "float8_e4m3fnuz" "|V1" 11 "Eight-bit float with one zero.",
    F8E5M2Fnuz "F8_E5M2FNUZ" 8 "float8_e5m2fnuz" "float8_e5m2fnuz" "|V1" 13 "Eight-bit float with one zero.",
    I16 "I16" 16 "int16" "int16" "<i2" 0 "Signed, two bytes.",
    U16 "U16" 16 "uint16" "uint16" "<u2" 1 "Unsigned, two bytes.",
    F16 "F16" 16 "float16" "float16" "<f2" 2 "Half precision.",
    BF16 "BF16" 16 "bfloat16" "bfloat16" "<V2" 4 "Brain float.",
    I32 "I32" 32 "int32" "int32" "<i4" 0 "Signed, four bytes.",
    U32 "U32" 32 "uint32" "uint32" "<u4" 1 "Unsigned, four bytes.",
    F32 "F32" 32 "float32" "float32" "<f4" 2 "Single precision.",
    C64 "C64" 64 "complex64" "complex64" "<c8" 5 "Complex of two single precision floats.",
    F64 "F64" 64 "float64" "float64" "<f8" 2 "Double precision.",
    I64 "I64" 64 "int64" "int64" "<i8" 0 "Signed, eight bytes.",
    U64 "U64" 64 "uint64" "uint64" "<u8" 1 "Unsigned, eight bytes.",
    C128 "complex128" 128 "complex128" "complex128" "<c16" 5 "Complex of two double precision floats.",
    C32 "complex32" 32 "complex32" "complex32" "<V4" 5 "Complex of two half precision floats.",
    BC32 "bcomplex32" 32 "bcomplex32" "" "<V4" -1 "Complex of two brain floats.",
    F8E3M4 "float8_e3m4" 8 "float8_e3m4" "" "|V1" 7 "Eight-bit float.",
    F8E4M3Inf "float8_e4m3" 8 "float8_e4m3" "" "|V1" 8 "Eight-bit float with infinities.",
    F8E4M3B11Fnuz "float8_e4m3b11fnuz" 8 "float8_e4m3b11fnuz" "" "|V1" 9 "Eight-bit float with one zero.",
    F4InByte "float4_e2m1fn" 8 "float4_e2m1fn" "" "|V1" -1 "Four-bit float, one to a byte.",
    F6E2M3InByte "float6_e2m3fn" 8 "float6_e2m3fn" "" "|V1" -1 "Six-bit float, one to a byte.",
    F6E3M2InByte "float6_e3m2fn" 8 "float6_e3m2fn" "" "|V1" -1 "Six-bit float, one to a byte.",
    I1InByte "int1" 8 "int1" "" "|V1" -1 "Signed, one bit, one to a byte.",
    I2InByte "int2" 8 "int2" "" "|V1" -1 "Signed, two bits, one to a byte.",
    I4InByte "int4" 8 "int4" "" "|V1" -1 "Signed, four bits, one to a byte.",
    U1InByte "uint1" 8 "uint1" "" "|V1" -1 "Unsigned, one bit, one to a byte.",
    U2InByte "uint2" 8 "uint2" "" "|V1" -1 "Unsigned, two bits, one to a byte.",
    U4InByte "uint4" 8 "uint4" "" "|V1" -1 "Unsigned, four bits, one to a byte.",
}

impl Dtype {
    /// The type of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::TABLE.iter().copied().find(|dtype| dtype.name() == name)
    }

    /// The type of this name, or an error that lists those there are.
    pub fn parse(name: &str) -> Result<Self> {
        Self::from_name(name).ok_or_else(|| {
            let known: Vec<&str> = Self::TABLE.iter().map(|dtype| dtype.name()).collect();
            Error::new(ErrorKind::InvalidInput, format!("unknown dtype {}", crate::text::shown(name)))
                .hint(format!("one of {}", known.join(", ")))
        })
    }

    /// Whether safetensors files can have it.
    pub fn is_of_safetensors(self) -> bool {
        Self::ALL.contains(&self)
    }

    /// What an element's address should be a multiple of.
    pub const fn alignment(self) -> u64 {
        match self.bits() {
            16 => 2,
            32 => 4,
            64 | 128 => 8,
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
        for dtype in Dtype::TABLE {
            assert_eq!(Dtype::from_name(dtype.name()), Some(*dtype));
        }
        let error = Dtype::parse("f32").unwrap_err();
        assert!(error.hints()[0].contains("BF16"), "{error:?}");
    }

    #[test]
    fn what_numpy_has_not_got_is_bytes_of_its_width() {
        for dtype in Dtype::TABLE.iter().filter(|dtype| !dtype.numpy().is_empty()) {
            assert_eq!(crate::npy::itemsize(dtype.descr()).unwrap() * 8, dtype.bits(), "{dtype:?}");
            assert!(dtype.is_of_safetensors() || dtype.name() == dtype.numpy());
        }
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
