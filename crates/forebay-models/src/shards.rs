//! shards
