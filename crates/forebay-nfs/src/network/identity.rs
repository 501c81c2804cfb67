//! The identities of a client and its server, in versions with sessions.

use crate::protocol::v4::ClientId;

/// This client as its server knows it, and the server by its own word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServerIdentity {
    pub(super) verifier: [u8; 8],
    pub(super) owner: Vec<u8>,
    pub(crate) client: u64,
    pub(super) minor: u64,
    pub(super) major: Vec<u8>,
    pub(super) scope: Vec<u8>,
}

impl ServerIdentity {
    pub(crate) fn new(verifier: [u8; 8], owner: &[u8], told: ClientId<'_>) -> Self {
        let (owner, major, scope) = (owner.to_vec(), told.major.to_vec(), told.scope.to_vec());
        Self { verifier, owner, client: told.client, minor: told.minor, major, scope }
    }
}
