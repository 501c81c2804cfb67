//! The fields of the JSON form: path, type and meaning, from the declarations of the types.

use forebay_engine::{Moved, Way};
use forebay_gpu::DeviceName;

/// A field of the JSON form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DescribedField {
    /// Where it is: `passes[].cpu.user_s`.
    pub path: String,
    /// Its type in JSON: `number or null`.
    pub kind: String,
    /// What it means.
    pub about: String,
}

/// All fields, in the order of the JSON form.
pub fn fields() -> Vec<DescribedField> {
    let mut all = Vec::new();
    super::BenchReport::below("", &mut all);
    all
}

/// A type of the report.
pub(super) trait Described {
    /// Its type in JSON.
    fn kind() -> String;

    /// Adds its fields.
    fn below(_at: &str, _to: &mut Vec<DescribedField>) {}

    /// Adds itself as a field of `at`, and what is below.
    fn describe(at: &str, name: &str, about: &str, to: &mut Vec<DescribedField>) {
        let path = if at.is_empty() { name.to_owned() } else { format!("{at}.{name}") };
        let about = about.trim().trim_end_matches('.').to_owned();
        to.push(DescribedField { path: path.clone(), kind: Self::kind(), about });
        Self::below(&path, to);
    }
}

macro_rules! kinds {
    ($($kind:literal: $($type:ty),+;)+) => { $($(
        impl Described for $type {
            fn kind() -> String {
                $kind.to_owned()
            }
        }
    )+)+ };
}
kinds! {
    "number": u64, u32, i32, usize, f64;
    "string": String, &'static str;
    "bool": bool;
    "number or string": DeviceName;
}

impl<T: Described> Described for Option<T> {
    fn kind() -> String {
        format!("{} or null", T::kind())
    }

    fn below(at: &str, to: &mut Vec<DescribedField>) {
        T::below(at, to);
    }
}

impl<T: Described> Described for Vec<T> {
    fn kind() -> String {
        "list".to_owned()
    }

    fn below(at: &str, to: &mut Vec<DescribedField>) {
        T::below(&format!("{at}[]"), to);
    }
}

/// A field for each way, beside the others.
impl Described for Moved {
    fn kind() -> String {
        u64::kind()
    }

    fn describe(at: &str, _: &str, _: &str, to: &mut Vec<DescribedField>) {
        for way in Way::ALL {
            u64::describe(at, way.name(), &format!("Bytes: {}", way.words()), to);
        }
    }
}

/// Types of the report, with a comment for each field.
macro_rules! described {
    ($(
        $(#[doc = $whole:literal])+ $(#[derive($($derive:ident),+)])? pub struct $type:ident { $(
            $(#[doc = $about:literal])+ $(#[serde($($serde:tt)*)])? pub $field:ident: $kind:ty,
        )+ }
    )+) => { $(
        $(#[doc = $whole])+
        #[derive(Clone, Debug, Serialize)]
        $(#[derive($($derive),+)])?
        pub struct $type { $(
            $(#[doc = $about])+ $(#[serde($($serde)*)])?
            pub $field: $kind,
        )+ }

        impl described::Described for $type {
            fn kind() -> String {
                "object".to_owned()
            }

            fn below(at: &str, to: &mut Vec<DescribedField>) {
                $(<$kind as described::Described>::describe(at, stringify!($field), concat!($($about),+), to);)+
            }
        }
    )+ };
}
