//! Which NICs lead to the addresses of a server, and which addresses a client of one NIC uses.

use std::net::SocketAddr;
use std::sync::Arc;

use forebay_error::{Error, ErrorKind, Result};
use forebay_verbs::{Device, Domain, Route, Why};

use crate::lock;
use crate::network::addresses::{CHECK_TIME, UnshownReason};
use crate::network::server::NfsServer;

impl NfsServer {
    /// The NIC that is to be used, if not all are.
    pub(crate) fn nic(&self) -> Option<&str> {
        self.options.rdma.as_ref()?.nic.as_deref()
    }

    /// Whether bytes go to the first address: where a NIC is named, if that leads there.
    pub(crate) fn uses_first(&self) -> bool {
        self.nic().is_none_or(|nic| self.domain().is_ok_and(|domain| domain.device().name == nic))
    }

    /// The protection domain of connections to the first address that is in use.
    pub(crate) fn domain_in_use(&self) -> Result<Arc<dyn Domain>> {
        if self.uses_first() {
            return self.domain();
        }
        match self.further.shown().first() {
            Some(index) => self.further_domain(*index),
            None => Err(self.no_route()),
        }
    }

    /// The NIC that is to be used leads nowhere: no other one takes its place.
    fn no_route(&self) -> Error {
        let error = Why::NoRoute.error("the NIC leads to no address of the server");
        error.with("nic", self.nic().unwrap_or_default())
    }

    /// An error where the first address is not to be used.
    pub(crate) fn check_first(&self) -> Result<()> {
        match self.nic() {
            Some(nic) if self.domain()?.device().name != nic => Err(self.no_route()),
            _ => Ok(()),
        }
    }

    /// Whether there is no address to wait for: another NIC leads to the first, and the others are left out.
    pub(crate) fn leads_nowhere(&self) -> bool {
        self.nic().is_some_and(|nic| self.domain().is_ok_and(|domain| domain.device().name != nic))
            && self.further.shown().is_empty()
    }

    /// The NICs that lead to the addresses in use.
    pub(crate) fn nics(&self) -> Vec<Device> {
        let mut all: Vec<Device> = Vec::new();
        let further = self.further.shown().into_iter().map(|index| self.further_domain(index));
        for domain in self.uses_first().then(|| self.domain()).into_iter().chain(further).flatten() {
            if all.iter().all(|known| known.name != domain.device().name) {
                all.push(domain.device().clone());
            }
        }
        all
    }

    /// Where a further address takes RDMA.
    pub(crate) fn further_rdma_address(&self, index: usize) -> Result<SocketAddr> {
        let (rdma, _) = self.rdma_address()?;
        let nothing = || Error::new(ErrorKind::Internal, "an address of nothing");
        let address = self.further.all[index].on_fabric().ok_or_else(nothing)?;
        Ok(SocketAddr::new(address, rdma.port))
    }

    /// The protection domain of connections to a further address: that of others to which the same NIC leads.
    pub(crate) fn further_domain(&self, index: usize) -> Result<Arc<dyn Domain>> {
        let known = |kept: &[(usize, Arc<dyn Domain>)]| {
            kept.iter().find(|(known, _)| *known == index).map(|(_, domain)| domain.clone())
        };
        if let Some(domain) = known(&lock(&self.further.domains)) {
            return Ok(domain);
        }
        self.options.check_network()?;
        let (rdma, _) = self.rdma_address()?;
        let to = self.further_rdma_address(index)?;
        let route = Route { timeout: self.options.connect.min(CHECK_TIME), ..Route::to(to) };
        let (own, first) = (rdma.fabric.open(&route)?, self.domain());
        let mut kept = lock(&self.further.domains);
        if let Some(domain) = known(&kept) {
            return Ok(domain);
        }
        let mut others = first.into_iter().chain(kept.iter().map(|(_, domain)| domain.clone()));
        let alike = others.find(|other| other.device().name == own.device().name);
        drop(others);
        let domain = alike.unwrap_or(own);
        kept.push((index, domain.clone()));
        Ok(domain)
    }

    /// Whether an address takes RDMA, by the NIC that is to be used.
    pub(crate) fn try_by_rdma(&self, index: usize) -> Result<(), UnshownReason> {
        let domain = self.further_domain(index)?;
        if self.nic().is_some_and(|nic| nic != domain.device().name) {
            return Err(UnshownReason::Aside);
        }
        let Some(tries) = self.tries_rdma.get() else { return Err(UnshownReason::Unclear) };
        Ok(tries(self, index)?)
    }
}
