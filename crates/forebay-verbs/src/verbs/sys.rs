//! The C interface of libibverbs and librdmacm, as far as it is used: declarations of our own. Layouts are the same in all
//! versions of the libraries that bear these names (ABI 1.1 and 1.0); unused fields are left out at the end of a
//! structure, or are a gap.

#![allow(clippy::struct_field_names, reason = "the names that the C interface has")]

use std::ffi::{c_char, c_int, c_void};

pub(super) const PORT_SPACE_TCP: c_int = 0x0106;
pub(super) const QP_RC: u32 = 2;
pub(super) const MW_TYPE_2: c_int = 2;
pub(super) const CAP_WINDOW_2B: u32 = 1 << 24;

pub(super) const SEND_FENCE: u32 = 1;
pub(super) const SEND_SIGNALED: u32 = 1 << 1;
pub(super) const SEND_INLINE: u32 = 1 << 3;

pub(super) const WR_RDMA_WRITE: u32 = 0;
pub(super) const WR_RDMA_WRITE_WITH_IMM: u32 = 1;
pub(super) const WR_SEND: u32 = 2;
pub(super) const WR_RDMA_READ: u32 = 4;
pub(super) const WR_LOCAL_INV: u32 = 7;
pub(super) const WR_BIND_MW: u32 = 8;
pub(super) const WR_SEND_WITH_INV: u32 = 9;

pub(super) const WC_WITH_IMM: u32 = 1 << 1;
pub(super) const WC_WITH_INV: u32 = 1 << 3;
/// A receive that an RDMA WRITE with a number took.
pub(super) const WC_RECV_RDMA_WITH_IMM: u32 = 1 << 7 | 1;

/// Which fields of [`QpAttr`] are set.
pub(super) const QP_STATE: c_int = 1;
pub(super) const QP_ACCESS_FLAGS: c_int = 1 << 3;
pub(super) const QP_PKEY_INDEX: c_int = 1 << 4;
pub(super) const QP_PORT: c_int = 1 << 5;
pub(super) const QP_AV: c_int = 1 << 7;
pub(super) const QP_PATH_MTU: c_int = 1 << 8;
pub(super) const QP_TIMEOUT: c_int = 1 << 9;
pub(super) const QP_RETRY_CNT: c_int = 1 << 10;
pub(super) const QP_RNR_RETRY: c_int = 1 << 11;
pub(super) const QP_RQ_PSN: c_int = 1 << 12;
pub(super) const QP_MAX_QP_RD_ATOMIC: c_int = 1 << 13;
pub(super) const QP_MIN_RNR_TIMER: c_int = 1 << 15;
pub(super) const QP_SQ_PSN: c_int = 1 << 16;
pub(super) const QP_MAX_DEST_RD_ATOMIC: c_int = 1 << 17;
pub(super) const QP_DEST_QPN: c_int = 1 << 20;

pub(super) const QP_STATE_INIT: u32 = 1;
pub(super) const QP_STATE_READY_TO_RECEIVE: u32 = 2;
pub(super) const QP_STATE_READY_TO_SEND: u32 = 3;
pub(super) const QP_STATE_ERROR: u32 = 6;

pub(super) const LINK_LAYER_ETHERNET: u8 = 2;

pub(super) const EVENT_ADDR_RESOLVED: u32 = 0;
pub(super) const EVENT_ADDR_ERROR: u32 = 1;
pub(super) const EVENT_ROUTE_RESOLVED: u32 = 2;
pub(super) const EVENT_ROUTE_ERROR: u32 = 3;
pub(super) const EVENT_CONNECT_REQUEST: u32 = 4;
pub(super) const EVENT_CONNECT_ERROR: u32 = 6;
pub(super) const EVENT_UNREACHABLE: u32 = 7;
pub(super) const EVENT_REJECTED: u32 = 8;
pub(super) const EVENT_ESTABLISHED: u32 = 9;
pub(super) const EVENT_DISCONNECTED: u32 = 10;
pub(super) const EVENT_DEVICE_REMOVAL: u32 = 11;
pub(super) const EVENT_ADDR_CHANGE: u32 = 14;

#[repr(C)]
pub(super) struct IbvDevice {
    operations: [*mut c_void; 2],
    node_type: c_int,
    pub(super) transport: c_int,
}

/// A function of a context that the headers call inline; absent in those that lack it.
type Slot = Option<unsafe extern "C" fn()>;

#[repr(C)]
pub(super) struct IbvContext {
    pub(super) device: *mut IbvDevice,
    compat_1: [Slot; 7],
    pub(super) alloc_mw: Option<unsafe extern "C" fn(*mut IbvPd, c_int) -> *mut IbvMw>,
    bind_mw: Slot,
    pub(super) dealloc_mw: Option<unsafe extern "C" fn(*mut IbvMw) -> c_int>,
    compat_2: Slot,
    pub(super) poll_cq: unsafe extern "C" fn(*mut IbvCq, c_int, *mut Wc) -> c_int,
    pub(super) req_notify_cq: unsafe extern "C" fn(*mut IbvCq, c_int) -> c_int,
    compat_3: [Slot; 12],
    pub(super) post_send: unsafe extern "C" fn(*mut IbvQp, *mut SendWr, *mut *mut SendWr) -> c_int,
    pub(super) post_recv: unsafe extern "C" fn(*mut IbvQp, *mut RecvWr, *mut *mut RecvWr) -> c_int,
}

#[repr(C)]
pub(super) struct IbvPd {
    pub(super) context: *mut IbvContext,
}

#[repr(C)]
pub(super) struct IbvMr {
    context: *mut IbvContext,
    pd: *mut IbvPd,
    addr: *mut c_void,
    length: usize,
    handle: u32,
    pub(super) lkey: u32,
    pub(super) rkey: u32,
}

#[repr(C)]
pub(super) struct IbvMw {
    pub(super) context: *mut IbvContext,
    pd: *mut IbvPd,
    pub(super) rkey: u32,
}

#[repr(C)]
pub(super) struct IbvCq {
    opaque: [u8; 0],
}

#[repr(C)]
pub(super) struct IbvQp {
    pointers: [*mut c_void; 6],
    handle: u32,
    pub(super) number: u32,
}

#[repr(C)]
pub(super) struct CompChannel {
    context: *mut IbvContext,
    pub(super) fd: c_int,
}

#[repr(C)]
pub(super) struct Sge {
    pub(super) addr: u64,
    pub(super) length: u32,
    pub(super) lkey: u32,
}

#[repr(C)]
pub(super) struct SendWr {
    pub(super) wr_id: u64,
    pub(super) next: *mut SendWr,
    pub(super) sg_list: *mut Sge,
    pub(super) num_sge: c_int,
    pub(super) opcode: u32,
    pub(super) send_flags: u32,
    /// Or the number, in network order.
    pub(super) invalidate_rkey: u32,
    pub(super) remote_addr: u64,
    pub(super) rkey: u32,
    gap: [u32; 7],
    pub(super) mw: *mut IbvMw,
    pub(super) mw_rkey: u32,
    pub(super) mw_mr: *mut IbvMr,
    pub(super) mw_addr: u64,
    pub(super) mw_length: u64,
    pub(super) mw_access: u32,
}

#[repr(C)]
pub(super) struct RecvWr {
    pub(super) wr_id: u64,
    pub(super) next: *mut RecvWr,
    pub(super) sg_list: *mut Sge,
    pub(super) num_sge: c_int,
}

/// A completion. Valid behind a failure: `wr_id` and `status`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Wc {
    pub(super) wr_id: u64,
    pub(super) status: u32,
    pub(super) opcode: u32,
    detail: u32,
    pub(super) byte_len: u32,
    /// Or the number, in network order.
    pub(super) invalidated_rkey: u32,
    qp_num: u32,
    src_qp: u32,
    pub(super) wc_flags: u32,
    rest: u64,
}

#[repr(C)]
pub(super) struct QpCap {
    pub(super) max_send_wr: u32,
    pub(super) max_recv_wr: u32,
    pub(super) max_send_sge: u32,
    pub(super) max_recv_sge: u32,
    pub(super) max_inline_data: u32,
}

#[repr(C)]
pub(super) struct QpInitAttr {
    pub(super) qp_context: *mut c_void,
    pub(super) send_cq: *mut IbvCq,
    pub(super) recv_cq: *mut IbvCq,
    pub(super) srq: *mut c_void,
    pub(super) cap: QpCap,
    pub(super) qp_type: u32,
    pub(super) sq_sig_all: c_int,
}

/// `ibv_global_route`.
#[repr(C)]
pub(super) struct GlobalRoute {
    // As the union in C, it is aligned like a number of 64 bits.
    pub(super) gid: [u64; 2],
    flow_label: u32,
    pub(super) index: u8,
    pub(super) hop_limit: u8,
    traffic_class: u8,
}

/// `ibv_ah_attr`.
#[repr(C)]
pub(super) struct Address {
    pub(super) route: GlobalRoute,
    pub(super) lid: u16,
    service_level: u8,
    path_bits: u8,
    rate: u8,
    pub(super) is_global: u8,
    pub(super) port: u8,
}

/// `ibv_qp_attr`; larger than it is in any version.
#[repr(C)]
pub(super) struct QpAttr {
    pub(super) qp_state: u32,
    current_state: u32,
    pub(super) path_mtu: u32,
    migration: u32,
    key: u32,
    pub(super) receive_first: u32,
    pub(super) send_first: u32,
    pub(super) peer_number: u32,
    pub(super) access: u32,
    cap: QpCap,
    pub(super) address: Address,
    other_address: Address,
    pkey_index: [u16; 2],
    drained: [u8; 2],
    pub(super) reads_out: u8,
    pub(super) reads_in: u8,
    pub(super) receiver_timer: u8,
    pub(super) port: u8,
    pub(super) timeout: u8,
    pub(super) retries: u8,
    pub(super) receiver_retries: u8,
    rest: [u64; 16],
}

/// `ibv_port_attr`; larger than it is in any version.
#[repr(C)]
pub(super) struct PortAttr {
    state: [u32; 2],
    pub(super) active_mtu: u32,
    gap_1: [u32; 5],
    pkeys: u16,
    pub(super) lid: u16,
    gap_2: [u8; 10],
    pub(super) link_layer: u8,
    rest: [u64; 8],
}

#[repr(C)]
pub(super) struct DeviceAttr {
    gap_1: [u64; 10],
    pub(super) max_mr_size: u64,
    gap_2: [u64; 3],
    max_qp_wr: c_int,
    pub(super) device_cap_flags: u32,
    gap_3: [c_int; 4],
    pub(super) max_mr: c_int,
    max_pd: c_int,
    pub(super) max_qp_rd_atom: c_int,
    gap_4: [c_int; 2],
    pub(super) max_qp_init_rd_atom: c_int,
    // All of it is written by the library: 232 bytes.
    rest: [u64; 16],
}

#[repr(C)]
pub(super) struct EventChannel {
    pub(super) fd: c_int,
}

#[repr(C)]
pub(super) struct CmId {
    pub(super) verbs: *mut IbvContext,
    channel: *mut EventChannel,
    context: *mut c_void,
    pub(super) qp: *mut IbvQp,
    pub(super) source: libc::sockaddr_storage,
    pub(super) destination: libc::sockaddr_storage,
    ib_address: [u64; 5],
    paths: *mut c_void,
    // A number of 32 bits, and a gap.
    path_count: u64,
    space: c_int,
    pub(super) port: u8,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct ConnParam {
    pub(super) private_data: *const c_void,
    pub(super) private_data_len: u8,
    pub(super) responder_resources: u8,
    pub(super) initiator_depth: u8,
    pub(super) flow_control: u8,
    pub(super) retry_count: u8,
    pub(super) rnr_retry_count: u8,
    pub(super) srq: u8,
    pub(super) qp_num: u32,
}

#[repr(C)]
pub(super) struct CmEvent {
    pub(super) id: *mut CmId,
    pub(super) listen_id: *mut CmId,
    pub(super) event: u32,
    pub(super) status: c_int,
    pub(super) conn: ConnParam,
}

macro_rules! functions {
    ($(#[$doc:meta])* $table:ident { $(fn $name:ident($($argument:ident: $type:ty),* $(,)?) $(-> $result:ty)?;)* }) => {
        $(#[$doc])*
        pub(super) struct $table {
            $($name: unsafe extern "C" fn($($type),*) $(-> $result)?,)*
        }

        impl $table {
            /// The functions of a library, or the name of the first that it lacks.
            ///
            /// # Safety
            /// The library has them with these types, and outlives the table.
            pub(super) unsafe fn load(library: &libloading::os::unix::Library) -> Result<Self, &'static str> {
                // SAFETY: as the caller promises.
                unsafe {
                    Ok(Self { $($name: *library.get(stringify!($name)).map_err(|_| stringify!($name))?,)* })
                }
            }

            $(pub(super) unsafe fn $name(&self, $($argument: $type),*) $(-> $result)? {
                // SAFETY: as the caller promises for this function of the C interface.
                unsafe { (self.$name)($($argument),*) }
            })*
        }
    };
}

functions! {
    /// libibverbs.
    Ibv {
        fn ibv_get_device_list(count: *mut c_int) -> *mut *mut IbvDevice;
        fn ibv_free_device_list(list: *mut *mut IbvDevice);
        fn ibv_fork_init() -> c_int;
        fn ibv_get_device_name(device: *mut IbvDevice) -> *const c_char;
        fn ibv_query_device(context: *mut IbvContext, attributes: *mut DeviceAttr) -> c_int;
        fn ibv_alloc_pd(context: *mut IbvContext) -> *mut IbvPd;
        fn ibv_dealloc_pd(pd: *mut IbvPd) -> c_int;
        fn ibv_reg_mr(pd: *mut IbvPd, address: *mut c_void, len: usize, access: c_int) -> *mut IbvMr;
        fn ibv_dereg_mr(mr: *mut IbvMr) -> c_int;
        fn ibv_create_comp_channel(context: *mut IbvContext) -> *mut CompChannel;
        fn ibv_destroy_comp_channel(channel: *mut CompChannel) -> c_int;
        fn ibv_create_cq(context: *mut IbvContext, entries: c_int, user: *mut c_void, channel: *mut CompChannel, vector: c_int) -> *mut IbvCq;
        fn ibv_destroy_cq(cq: *mut IbvCq) -> c_int;
        fn ibv_get_cq_event(channel: *mut CompChannel, cq: *mut *mut IbvCq, user: *mut *mut c_void) -> c_int;
        fn ibv_ack_cq_events(cq: *mut IbvCq, count: u32);
        fn ibv_query_port(context: *mut IbvContext, port: u8, attributes: *mut PortAttr) -> c_int;
        fn ibv_create_qp(pd: *mut IbvPd, attributes: *mut QpInitAttr) -> *mut IbvQp;
        fn ibv_destroy_qp(qp: *mut IbvQp) -> c_int;
        fn ibv_modify_qp(qp: *mut IbvQp, attributes: *mut QpAttr, mask: c_int) -> c_int;
    }
}

functions! {
    /// librdmacm.
    Cm {
        fn rdma_create_event_channel() -> *mut EventChannel;
        fn rdma_destroy_event_channel(channel: *mut EventChannel);
        fn rdma_create_id(channel: *mut EventChannel, id: *mut *mut CmId, user: *mut c_void, space: c_int) -> c_int;
        fn rdma_destroy_id(id: *mut CmId) -> c_int;
        fn rdma_migrate_id(id: *mut CmId, channel: *mut EventChannel) -> c_int;
        fn rdma_bind_addr(id: *mut CmId, address: *mut libc::sockaddr) -> c_int;
        fn rdma_resolve_addr(id: *mut CmId, from: *mut libc::sockaddr, to: *mut libc::sockaddr, milliseconds: c_int) -> c_int;
        fn rdma_resolve_route(id: *mut CmId, milliseconds: c_int) -> c_int;
        fn rdma_create_qp(id: *mut CmId, pd: *mut IbvPd, attributes: *mut QpInitAttr) -> c_int;
        fn rdma_destroy_qp(id: *mut CmId);
        fn rdma_connect(id: *mut CmId, parameters: *mut ConnParam) -> c_int;
        fn rdma_listen(id: *mut CmId, backlog: c_int) -> c_int;
        fn rdma_accept(id: *mut CmId, parameters: *mut ConnParam) -> c_int;
        fn rdma_reject(id: *mut CmId, data: *const c_void, len: u8) -> c_int;
        fn rdma_disconnect(id: *mut CmId) -> c_int;
        fn rdma_get_cm_event(channel: *mut EventChannel, event: *mut *mut CmEvent) -> c_int;
        fn rdma_ack_cm_event(event: *mut CmEvent) -> c_int;
    }
}

/// A function that older libraries lack.
pub(super) type RegDmabufMr = unsafe extern "C" fn(*mut IbvPd, u64, usize, u64, c_int, c_int) -> *mut IbvMr;

/// Another one: what a fork does to registered memory.
pub(super) type IsForkInitialized = unsafe extern "C" fn() -> c_int;

/// Its answer where the kernel gives a child copies.
pub(super) const FORK_UNNEEDED: c_int = 2;

/// Sizes and places as a C compiler sees them in rdma-core 44 (x86-64 and aarch64 alike).
const _: () = {
    use std::mem::{offset_of, size_of};

    assert!(offset_of!(IbvDevice, transport) == 20);
    assert!(offset_of!(IbvContext, alloc_mw) == 8 + 56 && offset_of!(IbvContext, dealloc_mw) == 8 + 72);
    assert!(offset_of!(IbvContext, poll_cq) == 8 + 88 && offset_of!(IbvContext, req_notify_cq) == 8 + 96);
    assert!(offset_of!(IbvContext, post_send) == 8 + 200 && offset_of!(IbvContext, post_recv) == 8 + 208);
    assert!(size_of::<IbvMr>() == 48 && offset_of!(IbvMr, lkey) == 36 && offset_of!(IbvMr, rkey) == 40);
    assert!(offset_of!(IbvMw, rkey) == 16 && offset_of!(CompChannel, fd) == 8);
    assert!(size_of::<Sge>() == 16 && size_of::<RecvWr>() == 32 && size_of::<SendWr>() == 128);
    assert!(offset_of!(SendWr, num_sge) == 24 && offset_of!(SendWr, opcode) == 28);
    assert!(offset_of!(SendWr, send_flags) == 32 && offset_of!(SendWr, invalidate_rkey) == 36);
    assert!(offset_of!(SendWr, remote_addr) == 40 && offset_of!(SendWr, rkey) == 48);
    assert!(
        offset_of!(SendWr, mw) == 80 && offset_of!(SendWr, mw_rkey) == 88 && offset_of!(SendWr, mw_mr) == 96
    );
    assert!(offset_of!(SendWr, mw_addr) == 104 && offset_of!(SendWr, mw_access) == 120);
    assert!(size_of::<Wc>() == 48 && offset_of!(Wc, status) == 8 && offset_of!(Wc, byte_len) == 20);
    assert!(offset_of!(Wc, invalidated_rkey) == 24 && offset_of!(Wc, wc_flags) == 36);
    assert!(size_of::<QpInitAttr>() == 64 && size_of::<QpCap>() == 20 && offset_of!(QpInitAttr, cap) == 32);
    assert!(offset_of!(QpInitAttr, qp_type) == 52 && offset_of!(QpInitAttr, sq_sig_all) == 56);
    assert!(offset_of!(DeviceAttr, device_cap_flags) == 116 && offset_of!(DeviceAttr, max_qp_rd_atom) == 144);
    assert!(offset_of!(DeviceAttr, max_qp_init_rd_atom) == 156 && size_of::<DeviceAttr>() >= 232);
    assert!(
        offset_of!(CmId, qp) == 24 && offset_of!(CmId, source) == 32 && offset_of!(CmId, destination) == 160
    );
    assert!(offset_of!(CmId, paths) == 328 && offset_of!(CmId, port) == 348);
    assert!(offset_of!(IbvQp, number) == 52);
    assert!(size_of::<Address>() == 32 && offset_of!(Address, lid) == 24 && offset_of!(Address, port) == 30);
    assert!(offset_of!(GlobalRoute, index) == 20 && size_of::<GlobalRoute>() == 24);
    assert!(offset_of!(QpAttr, receive_first) == 20 && offset_of!(QpAttr, access) == 32);
    assert!(offset_of!(QpAttr, address) == 56 && offset_of!(QpAttr, pkey_index) == 120);
    assert!(offset_of!(QpAttr, reads_out) == 126 && offset_of!(QpAttr, receiver_retries) == 132);
    assert!(size_of::<QpAttr>() >= 144);
    assert!(offset_of!(PortAttr, lid) == 34 && offset_of!(PortAttr, link_layer) == 46);
    assert!(size_of::<PortAttr>() >= 56);
    assert!(
        offset_of!(CmEvent, event) == 16
            && offset_of!(CmEvent, status) == 20
            && offset_of!(CmEvent, conn) == 24
    );
    assert!(size_of::<ConnParam>() == 24 && offset_of!(ConnParam, rnr_retry_count) == 13);
    assert!(offset_of!(ConnParam, qp_num) == 16);
};
