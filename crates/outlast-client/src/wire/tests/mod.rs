//! Connections over real sockets and real processes.
