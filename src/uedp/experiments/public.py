"""Words that a pipeline trained on news takes for names elsewhere, declared public by hand.

Contract language capitalises its own terms, and AG's articles carry remnants of markup and the names
of the agencies that sent them. What stands here is not protected as an entity; it is still protected
as part of its sentence and of its user's texts.
"""

_ORDINARY = """
the a an any all each other others no not if upon except unless until since after before while when
where as at by for from in into of on or over per to under with without within and but this that these
those such it its his her their our your we you he she they who whom which what one two three first
second third new more most some many few said says say may shall will would should can could
""".split()

_CONTRACTS = """
accounts act actions additional adjusted administrative administrator advance advances affiliate
affiliates agent agents agreement agreements amended amendment amendments annual appendix applicable
arrangement article articles asset assets assignee assignment assignor attest attorney audit authority
award bank bankruptcy banks base basic benefit benefits board bonus borrower borrowers business buyer
bylaws capital cash cause certain certificate certificates chairman change chapter chief claim claims
class client closing code collateral commencement commercial commission commissions commitment
commitments committee common company compensation conditions confidential consent consideration
constitution construction consultant contract contractor contracts control corporate corporation costs
counsel counterpart counterparts court covenants credit creditor customer damages date dated day days
debt deed default defaults deferred definitions delivery department description director directors
disability distribution dividend document documents due duties effect effective employee employees
employer employment entire equity escrow event events exchange executed executive exercise exhibit
exhibits expenses expiration facility federal fee fees final finance financial financing fiscal force
form fund funds general good governing government grant grantee grantor gross guarantee guarantor
guaranty headings holder holders inc. incentive income indemnification indemnity indenture information
initial insurance intellectual interest interests internal investment investor investors issuer item
landlord law laws lease lender lenders letter liabilities liability license licensee licensor lien
liens limited loan loans llc long maker management manager market master material maturity member
members merger miscellaneous month monthly mortgage mutual net non note notes notice notices now number
obligation obligations offer office officer officers operating option options order original owner
paragraph parent part participant participants parties partner partners partnership party payment
payments pension performance period permitted person persons plan pledge policy preferred premises
president price principal prior private product products project promissory property provided provision
provisions public purchase purchaser pursuant rate receivables recitals redemption registered
registration regulation regulations release rent reports representations representative required
resolved restated restricted restrictions retirement revenue review revolving right rights risk royalty
rule rules salary sale sales schedule schedules secretary section sections secured securities security
seller senior separation series service services settlement severance share shareholder shareholders
shares short signature software special specific state statement states stock stockholder stockholders
sub subject subordinated subsidiaries subsidiary supplier supply swing system target tax taxes technology
tenant term termination terms therefore third title total trade transaction transfer treasury trust
trustee trustees unit units use value vendor vesting vice voting waiver warrant warrants whereas whereof
witness work year years
""".split()

_CONTRACT_PHRASES = (
    "the company",
    "witness whereof",
    "in witness whereof",
    ", inc.",
    ", inc",
    "employment agreement",
    "credit agreement",
    "loan agreement",
    "loan documents",
    "loan document",
    "state of",
    "the parties",
    "the “parties",
    "effective date",
    "closing date",
    "board of directors",
    "executive officer",
    "financial officer",
    "administrative agent",
    "event of default",
    "governing law",
    "applicable law",
    "base salary",
    "base rate",
    "entire agreement",
    "first amendment",
    "second amendment",
    "material adverse",
    "material adverse effect",
    "interest period",
    "letter of credit",
    "the employer",
    "change of",
    "change of control",
    "compensation committee",
    "employment period",
    "business day",
    "business days",
    "severance agreement",
    "governmental authority",
    "confidential information",
    "incentive plan",
    "retirement plan",
    "this letter",
    "good reason",
    "any lender",
    "each lender",
    "each bank",
    "each party",
    "exhibit a",
    "party a",
    "party b",
    "a. the",
    "b) the",
    "c) the",
)

_NEWS = """
39 39;s 39;t lt;b&gt b&gt com made 19 100 11 # quot lt gt amp b reuters ap afp bloomberg cp updated update quote profile research news internet web
oil prices price gold games company corp inc inc. co ltd group bank court commission exchange profit
stocks street north south east west world international high low top big net online pc ipo shares sales
""".split()

PUBLIC = {
    "ag": {word: "markup, news agencies, ordinary words" for word in (*_ORDINARY, *_NEWS)},
    "edgar": {word: "contract language" for word in (*_ORDINARY, *_CONTRACTS, *_CONTRACT_PHRASES)},
    "conll": {},
}
