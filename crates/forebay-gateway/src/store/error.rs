//! Why a store does not do a thing.

use std::fmt;

use forebay_error::Error;

/// A result of a store's call.
pub type StoreResult<T> = Result<T, StoreError>;

/// Why a store does not do a thing: each has an S3 code of its own.
#[derive(Debug)]
pub enum StoreError {
    /// There is no such bucket.
    NoBucket,
    /// The bucket is there already.
    BucketExists,
    /// Another has the name of the bucket.
    BucketTaken,
    /// The bucket has objects.
    BucketFull,
    /// The name can be no bucket: why.
    BucketName(&'static str),
    /// There is no such object.
    NoObject,
    /// A file system cannot have the key: why.
    Key(&'static str),
    /// There is no such upload.
    NoUpload,
    /// A part is not there, or has another ETag: its number.
    NoPart(u32),
    /// Parts are not in the order of their numbers.
    PartOrder,
    /// A part that is not the last is too short: its number.
    PartLength(u32),
    /// The condition does not hold.
    Precondition,
    /// Another request changes it at this moment.
    Conflict,
    /// The account's user may not.
    Denied,
    /// No room is left, or the user's quota is used up.
    Full,
    /// The file system does not answer rightly at this moment: the client may ask again.
    Later(Error),
    /// Anything else.
    Other(Error),
}

impl StoreError {
    /// Another mount replaced a file or a directory that was open.
    pub(crate) fn is_stale(&self) -> bool {
        matches!(self, Self::Later(error) if error.errno() == libc::ESTALE)
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoBucket => f.write_str("no such bucket"),
            Self::BucketExists => f.write_str("the bucket is there already"),
            Self::BucketTaken => f.write_str("another has the bucket's name"),
            Self::BucketFull => f.write_str("the bucket has objects"),
            Self::BucketName(why) => write!(f, "the bucket's name: {why}"),
            Self::NoObject => f.write_str("no such object"),
            Self::Key(why) => write!(f, "the key: {why}"),
            Self::NoUpload => f.write_str("no such upload"),
            Self::NoPart(number) => write!(f, "part {number} is not there, or has another ETag"),
            Self::PartOrder => f.write_str("parts are not in the order of their numbers"),
            Self::PartLength(number) => write!(f, "part {number} is too short"),
            Self::Precondition => f.write_str("the condition does not hold"),
            Self::Conflict => f.write_str("another request changes it"),
            Self::Denied => f.write_str("the account's user may not"),
            Self::Full => f.write_str("no room is left"),
            Self::Later(error) | Self::Other(error) => write!(f, "{error}"),
        }
    }
}

impl std::error::Error for StoreError {}
