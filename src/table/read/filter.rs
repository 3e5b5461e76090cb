//! What a row has to be like.
//!
//! Lives here: `Filter`: exact values and a condition together, as one expression for the base and one test for a batch.
//! May use: both. Never: how either is read or compared.

use std::collections::BTreeSet;

use arrow_array::{Array, BooleanArray, RecordBatch};
use datafusion::logical_expr::Expr;
use lance_core::datatypes::Schema;

use super::super::error::Result;
use super::condition::Condition;
use super::exact::Exact;
use super::{Ask, ReadError};

/// What a row has to be like.
pub(super) struct Filter {
    exact: Vec<Exact>,
    condition: Option<Condition>,
}

impl Filter {
    /// Reads what is asked of rows.
    ///
    /// # Errors
    /// `UnknownColumn`, `BadValue`, `BadCondition`.
    pub fn of(schema: &Schema, ask: &Ask) -> std::result::Result<Self, ReadError> {
        let condition = ask.condition.as_deref();
        Ok(Self {
            exact: Exact::all(schema, &ask.exact)?,
            condition: condition
                .map(|text| Condition::read(schema, text))
                .transpose()?,
        })
    }

    /// Whether every row passes.
    pub fn is_empty(&self) -> bool {
        self.exact.is_empty() && self.condition.is_none()
    }

    /// Both as one expression; `None` where every row passes.
    pub fn expression(&self) -> Result<Option<Expr>> {
        let exact = Exact::expression(&self.exact)?;
        let condition = self.condition.as_ref().map(Condition::expression);
        Ok(match (exact, condition) {
            (Some(exact), Some(condition)) => Some(exact.and(condition)),
            (exact, condition) => exact.or(condition),
        })
    }

    /// The field ids of the columns that are compared.
    pub fn ids(&self) -> BTreeSet<i32> {
        let exact = self.exact.iter().map(|e| e.id);
        exact
            .chain(self.condition.iter().flat_map(Condition::ids))
            .collect()
    }

    /// Whether an index of the base may answer it.
    pub fn by_index(&self) -> bool {
        self.condition.as_ref().is_none_or(Condition::by_index)
    }

    /// Which rows of a batch, which has the columns that are compared, pass.
    pub fn passes(&self, batch: &RecordBatch) -> Result<Vec<bool>> {
        let exact = self.exact.iter().map(|e| e.holds(batch));
        let condition = self.condition.iter().map(|c| c.holds(batch));
        let held: Vec<BooleanArray> = exact.chain(condition).collect::<Result<_>>()?;
        let passes = |row: usize| held.iter().all(|h| h.is_valid(row) && h.value(row));
        Ok((0..batch.num_rows()).map(passes).collect())
    }
}
