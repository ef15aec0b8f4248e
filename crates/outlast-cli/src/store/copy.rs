//! `outlast store copy`: all that one store keeps, kept in another one too.

use std::io::Write;

use anyhow::{Context, bail};
use outlast_admin::operate;
use outlast_core::{Owner, Record, Transfer};

use super::{Opened, Place, is_there};

/// Copy all tasks of a store to another one
///
/// A task is copied as it is: under its id, with its result, its journal, its open questions and its timers, and goes on there.
/// What is at the target already stays as it is, so that a copy which was broken off can be begun again.
///
/// Stop the servers of the first store before, and start none on it again: work that is not finished would be done twice.
#[derive(clap::Args)]
pub(super) struct Args {
    /// The store to read: a file, or postgres://USER@HOST/DATABASE
    #[arg(value_name = "FROM")]
    from: Place,
    /// The store to write; its file or its tables are created where there are none
    #[arg(value_name = "TO")]
    to: Place,
    /// Only the tasks of this owner: the digest that `outlast tasks show` gives, or the owner's whole name; may be repeated
    #[arg(long, value_name = "NAME")]
    owner: Vec<String>,
}

/// About how much is on its way at once.
const PAGE_BYTES: u64 = 1 << 20;

pub(super) async fn run(Args { from, to, owner }: Args, out: &mut impl Write) -> anyhow::Result<()> {
    if from.is_same(&to) {
        bail!("{from} and {to} are the same store; name another one to copy to");
    }
    if let Place::File(file) = &from {
        is_there(file, "name the store to read")?;
    }
    // As the one that runs its tasks, so that nobody else does in the meantime.
    let source = Opened::open_alone(&from).await.with_context(|| format!("cannot read {from}"))?;
    let copied = copy(&source, &from, &to, &owner).await;
    source.close().await;
    let Copied { new, known, damaged } = copied?;
    writeln!(out, "{new} copied to {to}, {known} were there already")?;
    if damaged > 0 {
        writeln!(out, "{damaged} tasks cannot be read, and stay in {from} alone")?;
    }
    if owner.is_empty() {
        writeln!(out, "Start servers on {to} alone from now on: what both stores keep would be done twice")?;
    } else {
        writeln!(
            out,
            "Cancel in {from} what is unfinished of whom was copied, before servers start on both: it would be done twice"
        )?;
    }
    Ok(())
}

struct Copied {
    new: u64,
    known: u64,
    damaged: u64,
}

async fn copy(source: &Opened, from: &Place, to: &Place, named: &[String]) -> anyhow::Result<Copied> {
    let leased = source.shared().counts().await.with_context(|| format!("cannot read {from}"))?.leased;
    if leased > 0 {
        bail!(
            "{leased} tasks of {from} are being worked on; stop its servers, and wait until their leases have run out"
        );
    }
    let mut owners = Vec::new();
    for name in named {
        owners.push(
            operate::owner(&*source.shared(), name).await.with_context(|| format!("cannot read {from}"))?,
        );
    }
    let target = Opened::open_alone(to).await.with_context(|| format!("cannot write {to}"))?;
    let copied = all(&*source.shared(), &*target.shared(), &owners).await;
    target.close().await;
    copied.with_context(|| {
        format!("the copy from {from} to {to} was broken off; the same command goes on with it")
    })
}

/// Whether a record is of one of these owners, or of any where none is named.
fn is_of(record: &Record, owners: &[Owner]) -> bool {
    let owner = match record {
        Record::Task(record) => &record.task.owner,
        Record::SpentKey(spent) => &spent.owner,
    };
    owners.is_empty() || owners.contains(owner)
}

async fn all(from: &dyn Transfer, to: &dyn Transfer, owners: &[Owner]) -> anyhow::Result<Copied> {
    let mut copied = Copied { new: 0, known: 0, damaged: 0 };
    let mut place = None;
    loop {
        let mut page = from.export(place, PAGE_BYTES).await?;
        page.records.retain(|record| is_of(record, owners));
        let records = page.records.len() as u64;
        let new = to.import(page.records).await?;
        copied.new += new;
        copied.known += records - new;
        copied.damaged += u64::from(page.damaged);
        match page.next {
            Some(next) => place = Some(next),
            None => return Ok(copied),
        }
    }
}
