//! Conditions that a caller writes in SQL.
//!
//! Lives here: `Condition`: a text read into a tree of allowed parts only, checked against the table's columns, and made
//! into an expression for Lance's scan of the base and a test of a generation's batch by the same rules, so that a row
//! answers the same before and after its merge. May use: DataFusion's parser, Lance's planner. Never: a text handed on as
//! it came, a function that is not on the list, or one that can fail on a row.

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{Array, BooleanArray, RecordBatch, RecordBatchOptions, new_null_array};
use arrow_schema::{DataType, Schema as ArrowSchema};
use datafusion::common::DFSchema;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::logical_expr::{Expr, ExprSchemable};
use datafusion::physical_plan::PhysicalExpr;
use datafusion::sql::sqlparser::ast::{
    self, BinaryOperator, CastKind, Expr as Sql, FunctionArg, FunctionArgExpr, FunctionArguments,
    Ident, ObjectNamePart, UnaryOperator, Value,
};
use datafusion::sql::sqlparser::dialect::{Dialect, GenericDialect};
use datafusion::sql::sqlparser::parser::Parser;
use datafusion::sql::sqlparser::tokenizer::Token;
use lance_core::datatypes::{Field, Schema};
use lance_datafusion::planner::Planner;

use super::super::error::{Error, Result};
use super::ReadError;
use super::rows::{part, shown, unknown};

/// Bytes of a condition's text.
pub const CONDITION_BYTES: usize = 4096;
/// Parts of it: operators, names, values.
const MOST_PARTS: usize = 256;
/// How deep they may lie in one another, chains of `and` and `or` apart.
const DEEPEST: usize = 32;

/// The stack on which it is read.
const STACK_BYTES: usize = 16 << 20;

/// Functions of one row that cannot fail, and how many arguments each takes.
pub const FUNCTIONS: [(&str, std::ops::RangeInclusive<usize>); 18] = [
    ("array_has", 2..=2),
    ("array_length", 1..=1),
    ("btrim", 1..=2),
    ("character_length", 1..=1),
    ("coalesce", 1..=8),
    ("concat", 1..=8),
    ("contains", 2..=2),
    ("ends_with", 2..=2),
    ("length", 1..=1),
    ("lower", 1..=1),
    ("ltrim", 1..=2),
    ("nullif", 2..=2),
    ("octet_length", 1..=1),
    ("regexp_like", 2..=2),
    ("rtrim", 1..=2),
    ("starts_with", 2..=2),
    ("strpos", 2..=2),
    ("upper", 1..=1),
];

/// Bytes that a regular expression may take once it is compiled.
const PATTERN_BYTES: usize = 1 << 20;

/// A condition on a row of a table.
pub(super) struct Condition {
    expression: Expr,
    /// The columns that it names, by their field ids.
    ids: BTreeSet<i32>,
    floats: bool,
}

impl Condition {
    /// Reads a text and checks it against the table's columns.
    ///
    /// # Errors
    /// `BadCondition`, `UnknownColumn`.
    pub fn read(schema: &Schema, text: &str) -> std::result::Result<Self, ReadError> {
        // Parsers and planners call themselves for every part in a part; a thread's own stack is short for that.
        stacker::grow(STACK_BYTES, || Self::planned(schema, text))
    }

    fn planned(schema: &Schema, text: &str) -> std::result::Result<Self, ReadError> {
        let tree = parsed(text)?;
        let mut walk = Walk {
            schema,
            parts: 0,
            fields: vec![],
        };
        walk.check(&tree)?;
        let fields = walk.fields;
        let ids = fields.iter().map(|f| f.id).collect();
        let floats = fields.iter().any(|f| has_float(&f.data_type()));
        let whole: ArrowSchema = schema.into();
        let planner = Planner::new(Arc::new(whole.clone()));
        // Written anew from what was allowed: nothing of the text but that comes into another statement.
        let planned = planner.parse_filter(&format!("({tree})"));
        let expression = planned.and_then(|e| planner.optimize_expr(e));
        let expression = expression.map_err(|_| mistyped())?;
        let condition = Self {
            expression,
            ids,
            floats,
        };
        condition.check_types(schema, &whole)?;
        Ok(condition)
    }

    /// Refuses what is no yes or no, what compares numbers with texts, and what has no meaning for these columns.
    fn check_types(
        &self,
        schema: &Schema,
        whole: &ArrowSchema,
    ) -> std::result::Result<(), ReadError> {
        let columns = DFSchema::try_from(whole.clone()).map_err(|_| mistyped())?;
        let kind = self.expression.get_type(&columns);
        if !matches!(kind, Ok(DataType::Boolean | DataType::Null)) {
            return Err(bad("it has to be true or false for a row, as in value > 5"));
        }
        let mut texts = false;
        let seen = self.expression.apply(|e| {
            if let Expr::Cast(cast) = e {
                let from = cast.expr.get_type(&columns)?;
                texts |= is_text(cast.field.data_type()) && !is_text(&from);
            }
            Ok(TreeNodeRecursion::Continue)
        });
        if seen.is_err() || texts {
            return Err(mistyped());
        }
        // What no kernel can compare is found out on a row without values.
        let named = part(schema, &self.ids);
        let fields: Vec<_> = ArrowSchema::from(&named)
            .fields()
            .iter()
            .map(|f| f.as_ref().clone().with_nullable(true))
            .collect();
        let columns = fields.iter().map(|f| new_null_array(f.data_type(), 1));
        let options = RecordBatchOptions::new().with_row_count(Some(1));
        let row = RecordBatch::try_new_with_options(
            Arc::new(ArrowSchema::new(fields.clone())),
            columns.collect(),
            &options,
        );
        let row = row.map_err(|e| Error::Bug(format!("a row without values: {e}")))?;
        self.holds(&row).map(|_| ()).map_err(|_| mistyped())
    }

    /// It, for a scan of the base.
    pub fn expression(&self) -> Expr {
        self.expression.clone()
    }

    /// The field ids of the columns that it names.
    pub fn ids(&self) -> impl Iterator<Item = i32> + '_ {
        self.ids.iter().copied()
    }

    /// Whether an index of the base may answer it: of floats, an index and a comparison do not agree on every value.
    pub fn by_index(&self) -> bool {
        !self.floats
    }

    /// Which rows of a batch, which has the columns that it names, it is true of.
    pub fn holds(&self, batch: &RecordBatch) -> Result<BooleanArray> {
        let failed = |e: String| Error::Bug(format!("a condition cannot be evaluated: {e}"));
        let test: Arc<dyn PhysicalExpr> = Planner::new(batch.schema())
            .create_physical_expr(&self.expression)
            .map_err(|e| failed(e.to_string()))?;
        let values = test
            .evaluate(batch)
            .and_then(|v| v.into_array(batch.num_rows()))
            .map_err(|e| failed(e.to_string()))?;
        match values.data_type() {
            DataType::Boolean => Ok(values.as_boolean().clone()),
            DataType::Null => Ok(BooleanArray::new_null(values.len())),
            other => Err(failed(format!("it is of type {other}"))),
        }
    }
}

fn bad(what: impl Into<String>) -> ReadError {
    ReadError::BadCondition { what: what.into() }
}

fn mistyped() -> ReadError {
    bad(
        "its parts do not fit the types of the columns: numbers are compared with numbers, texts in single quotes with texts, times as in TIMESTAMP '2026-01-02T03:04:05Z'",
    )
}

fn is_text(kind: &DataType) -> bool {
    match kind {
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View | DataType::Null => true,
        DataType::Dictionary(_, values) => is_text(values),
        _ => false,
    }
}

fn has_float(kind: &DataType) -> bool {
    match kind {
        DataType::List(f) | DataType::LargeList(f) | DataType::FixedSizeList(f, _) => {
            has_float(f.data_type())
        }
        DataType::Struct(fields) => fields.iter().any(|f| has_float(f.data_type())),
        DataType::Dictionary(_, values) => has_float(values),
        kind => kind.is_floating(),
    }
}

/// Names as Lance's planner reads them: in backticks where they are no plain words.
#[derive(Debug)]
struct Backticks;

impl Dialect for Backticks {
    fn dialect(&self) -> std::any::TypeId {
        GenericDialect {}.dialect()
    }

    fn is_identifier_start(&self, ch: char) -> bool {
        GenericDialect {}.is_identifier_start(ch)
    }

    fn is_identifier_part(&self, ch: char) -> bool {
        GenericDialect {}.is_identifier_part(ch)
    }

    fn is_delimited_identifier_start(&self, ch: char) -> bool {
        ch == '`'
    }
}

/// One expression and nothing after it.
fn parsed(text: &str) -> std::result::Result<Sql, ReadError> {
    if text.len() > CONDITION_BYTES {
        return Err(bad(format!("it has at most {CONDITION_BYTES} bytes")));
    }
    let mut parser = Parser::new(&Backticks)
        .with_recursion_limit(DEEPEST)
        .try_with_sql(text)
        .map_err(|_| unreadable())?;
    let tree = parser.parse_expr().map_err(|_| unreadable())?;
    match parser.peek_token().token {
        Token::EOF => Ok(tree),
        _ => Err(unreadable()),
    }
}

fn unreadable() -> ReadError {
    bad(
        "it is no SQL expression, as in reward > 0.5 and role = 'tool'; texts stand in single quotes, names that are no plain words in backticks",
    )
}

/// What is still to be looked at of a tree, how deep each part lies.
type Todo<'a> = Vec<(usize, &'a Sql)>;

struct Walk<'a> {
    schema: &'a Schema,
    parts: usize,
    fields: Vec<&'a Field>,
}

impl Walk<'_> {
    /// Goes through the whole tree without descending into it by calls: it may be as deep as its text is long.
    fn check(&mut self, tree: &Sql) -> std::result::Result<(), ReadError> {
        let mut todo: Todo = vec![(0, tree)];
        while let Some((deep, part)) = todo.pop() {
            self.parts += 1;
            if self.parts > MOST_PARTS || deep > DEEPEST {
                return Err(bad(format!(
                    "it has at most {MOST_PARTS} parts, at most {DEEPEST} of them in one another"
                )));
            }
            self.part(part, deep, &mut todo)?;
        }
        Ok(())
    }

    fn part<'s>(
        &mut self,
        part: &'s Sql,
        deep: usize,
        todo: &mut Todo<'s>,
    ) -> std::result::Result<(), ReadError> {
        let mut all = |parts: &[&'s Sql]| todo.extend(parts.iter().map(|p| (deep + 1, *p)));
        match part {
            Sql::Identifier(name) => self.column(std::slice::from_ref(name))?,
            Sql::CompoundIdentifier(names) => self.column(names)?,
            Sql::Value(value) => literal(&value.value)?,
            Sql::TypedString(typed) => {
                kind(&typed.data_type)?;
                literal(&typed.value.value)?;
                if typed.uses_odbc_syntax {
                    return Err(refused("{…}"));
                }
            }
            Sql::Nested(inner)
            | Sql::IsNull(inner)
            | Sql::IsNotNull(inner)
            | Sql::IsTrue(inner)
            | Sql::IsNotTrue(inner)
            | Sql::IsFalse(inner)
            | Sql::IsNotFalse(inner) => all(&[inner]),
            Sql::UnaryOp {
                op: UnaryOperator::Not | UnaryOperator::Minus,
                expr,
            } => all(&[expr]),
            Sql::BinaryOp { left, op, right } => match op {
                BinaryOperator::And | BinaryOperator::Or => {
                    // Chains are balanced before they are evaluated.
                    todo.extend([(deep, left.as_ref()), (deep, right.as_ref())]);
                }
                BinaryOperator::Divide | BinaryOperator::Modulo if !is_divisor(right) => {
                    return Err(bad(
                        "it may divide by a number that is written out, and not by 0",
                    ));
                }
                BinaryOperator::Divide
                | BinaryOperator::Modulo
                | BinaryOperator::Plus
                | BinaryOperator::Minus
                | BinaryOperator::Multiply
                | BinaryOperator::StringConcat
                | BinaryOperator::Gt
                | BinaryOperator::Lt
                | BinaryOperator::GtEq
                | BinaryOperator::LtEq
                | BinaryOperator::Eq
                | BinaryOperator::NotEq => all(&[left, right]),
                other => return Err(refused(&other.to_string())),
            },
            Sql::IsDistinctFrom(left, right) | Sql::IsNotDistinctFrom(left, right) => {
                all(&[left, right])
            }
            Sql::InList { expr, list, .. } => {
                all(&[expr]);
                all(&list.iter().collect::<Vec<_>>());
            }
            Sql::Between {
                expr, low, high, ..
            } => all(&[expr, low, high]),
            Sql::Like {
                any: false,
                expr,
                pattern,
                escape_char,
                ..
            }
            | Sql::ILike {
                any: false,
                expr,
                pattern,
                escape_char,
                ..
            } => {
                if let Some(escape) = escape_char {
                    literal(&escape.value)?;
                }
                all(&[expr, pattern]);
            }
            Sql::Cast {
                kind: CastKind::TryCast,
                expr,
                data_type,
                array: false,
                format: None,
            } => {
                kind(data_type)?;
                all(&[expr]);
            }
            Sql::Cast { .. } => {
                return Err(refused(
                    "CAST, which fails where a value has another form (TRY_CAST makes it null)",
                ));
            }
            Sql::Function(function) => all(&arguments(function)?),
            _ => return Err(refused("one of its parts")),
        }
        Ok(())
    }

    /// A column, or a field inside one.
    fn column(&mut self, names: &[Ident]) -> std::result::Result<(), ReadError> {
        let quoted = |n: &Ident| !matches!(n.quote_style, None | Some('`'));
        if names.iter().any(quoted) {
            return Err(unreadable());
        }
        let Some((first, inner)) = names.split_first() else {
            return Err(unreadable());
        };
        let mut columns = shown(self.schema).filter(|f| !f.is_blob());
        let column = columns.find(|f| f.name == first.value);
        let column = column.ok_or_else(|| unknown(self.schema, &first.value))?;
        let mut field = column;
        for name in inner {
            let of = matches!(field.data_type(), DataType::Struct(_));
            let mut children = field.children.iter().filter(|_| of);
            let child = children.find(|c| c.name == name.value);
            field = child.ok_or_else(|| {
                let name: String = name.value.chars().take(64).collect();
                bad(format!("`{}` has no field `{name}`", field.name))
            })?;
        }
        self.fields.push(column);
        Ok(())
    }
}

fn refused(what: &str) -> ReadError {
    let functions: Vec<_> = FUNCTIONS.iter().map(|(name, _)| *name).collect();
    bad(format!(
        "it may not use {what}; it may compare columns, numbers, texts and times with = <> < <= > >=, IN, BETWEEN, LIKE, ILIKE, IS NULL, reckon with + - * / % ||, join with AND, OR, NOT, and call {}",
        functions.join(", ")
    ))
}

fn literal(value: &Value) -> std::result::Result<(), ReadError> {
    match value {
        Value::Number(..)
        | Value::SingleQuotedString(_)
        | Value::HexStringLiteral(_)
        | Value::Boolean(_)
        | Value::Null => Ok(()),
        _ => Err(unreadable()),
    }
}

/// A type that a text can be read as, or a value tried as.
fn kind(kind: &ast::DataType) -> std::result::Result<(), ReadError> {
    use ast::DataType as T;
    match kind {
        T::String(_)
        | T::Float(_)
        | T::Double(_)
        | T::Boolean
        | T::TinyInt(_)
        | T::SmallInt(_)
        | T::Int(_)
        | T::Integer(_)
        | T::BigInt(_)
        | T::Date
        | T::Timestamp(..) => Ok(()),
        _ => Err(refused(
            "that type (STRING, BOOLEAN, TINYINT, SMALLINT, INT, BIGINT, FLOAT, DOUBLE, DATE, TIMESTAMP can be named)",
        )),
    }
}

fn is_divisor(part: &Sql) -> bool {
    match part {
        Sql::Value(value) => match &value.value {
            Value::Number(n, _) => n.parse::<f64>().is_ok_and(|n| n != 0.0),
            _ => false,
        },
        Sql::Nested(inner)
        | Sql::UnaryOp {
            op: UnaryOperator::Minus,
            expr: inner,
        } => matches!(inner.as_ref(), Sql::Value(_)) && is_divisor(inner),
        _ => false,
    }
}

/// The arguments of a function that is on the list, called plainly.
fn arguments(function: &ast::Function) -> std::result::Result<Vec<&Sql>, ReadError> {
    let name = match function.name.0.as_slice() {
        [ObjectNamePart::Identifier(name)] if name.quote_style.is_none() => {
            name.value.to_ascii_lowercase()
        }
        _ => return Err(refused("that function")),
    };
    let Some((_, takes)) = FUNCTIONS.iter().find(|(known, _)| *known == name) else {
        let name: String = name.chars().take(64).collect();
        return Err(refused(&format!("the function {name}")));
    };
    let plain = matches!(function.parameters, FunctionArguments::None)
        && !function.uses_odbc_syntax
        && function.filter.is_none()
        && function.null_treatment.is_none()
        && function.over.is_none()
        && function.within_group.is_empty();
    let arguments = match &function.args {
        FunctionArguments::List(list)
            if plain && list.duplicate_treatment.is_none() && list.clauses.is_empty() =>
        {
            let each = list.args.iter().map(|a| match a {
                FunctionArg::Unnamed(FunctionArgExpr::Expr(e)) => Some(e),
                _ => None,
            });
            each.collect::<Option<Vec<_>>>()
        }
        _ => None,
    };
    let arguments = arguments.filter(|a| takes.contains(&a.len()));
    let arguments = arguments.ok_or_else(|| {
        let (least, most) = (takes.start(), takes.end());
        bad(format!("{name} is called with {least} to {most} arguments"))
    })?;
    if name == "regexp_like" {
        pattern(arguments[1])?;
    }
    Ok(arguments)
}

/// A regular expression is written out, and small: it is compiled here before a row is looked at.
fn pattern(part: &Sql) -> std::result::Result<(), ReadError> {
    let text = match part {
        Sql::Value(value) => match &value.value {
            Value::SingleQuotedString(text) => Some(text),
            _ => None,
        },
        _ => None,
    };
    let compiled = text.map(|t| {
        regex::RegexBuilder::new(t)
            .size_limit(PATTERN_BYTES)
            .build()
    });
    match compiled {
        Some(Ok(_)) => Ok(()),
        _ => Err(bad(
            "regexp_like takes a regular expression that is written out, in the syntax of the Rust crate regex, and not too large",
        )),
    }
}
